"""Directories that a daemon writes into: for snapshots, and for a trace. Nobody else's, and none
that somebody else has put there."""

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from strangers import NOBODY, as_root, as_user
from wheeld.resources import trace_directory
from wheeld.snapshot.file import make_directory
from wheeld_core.errors import WheelError

MAKE: dict[str, Callable[[Path], Path]] = {
    "state_dir": make_directory,
    "trace": trace_directory.prepare,
}
Make = Callable[[Path], Path]


@pytest.fixture(params=MAKE)
def make(request: pytest.FixtureRequest) -> Make:
    return MAKE[request.param]


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    path = tmp_path / "ours"
    path.mkdir(mode=0o700)
    return path


def test_made_or_taken(make: Make, tmp_path: Path) -> None:
    found = make(tmp_path / "a" / "b")
    assert stat.S_IMODE(found.stat().st_mode) & 0o027 == 0
    assert make(tmp_path / "a" / "b") == found
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert make(tmp_path / "link" / "b").samefile(found)


@as_root
def test_another_users(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.mkdir(mode=0o755)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(WheelError, match=rf"uid {NOBODY}.*expected a directory of uid"):
        make(path)
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_one_that_others_may_write(make: Make, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(WheelError, match="that no other user can write to"):
        make(path)
    assert list(path.iterdir()) == []


def test_in_one_that_all_may_write(make: Make, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(WheelError, match="can be written by all users"):
        make(above / "x")
    above.chmod(0o1777)
    assert make(above / "x").is_dir()


@as_root
@pytest.mark.parametrize("where", ["itself", "above", "dangling"])
def test_planted_links(make: Make, tmp_path: Path, ours: Path, where: str) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.getuid() and not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(0o711)
    link = place / "state"
    to = ours / "new" if where == "dangling" else ours
    subprocess.run([*as_user(), "ln", "-s", str(to), str(link)], check=True)
    with pytest.raises(WheelError, match=f"link made by uid {NOBODY}"):
        make(link / "below" if where == "above" else link)
    assert list(ours.iterdir()) == []


@pytest.mark.parametrize("how", ["a link", "of all users", "of another user"])
def test_a_folder_of_spools_that_is_not_ours(tmp_path: Path, ours: Path, how: str) -> None:
    """The recorder writes and removes there: not through a link, nor beside others. Not later
    either, when it has gone meanwhile."""
    trace = trace_directory.prepare(tmp_path / "trace")
    spool = trace / "_spool"
    assert trace_directory.make_again(trace) == spool
    spool.rmdir()
    assert trace_directory.make_again(trace) == spool
    spool.rmdir()
    if how == "a link":
        spool.symlink_to(ours)
    else:
        spool.mkdir()
        spool.chmod(0o777)
        if how == "of another user":
            if os.getuid() != 0:
                pytest.skip("needs root, to be another user")
            os.chown(spool, NOBODY, NOBODY)
            spool.chmod(0o755)
    with pytest.raises(WheelError, match=str(spool)):
        trace_directory.prepare(trace)
    if how == "a link":
        with pytest.raises(PermissionError, match="is a link"):
            trace_directory.make_again(trace)
    assert list(ours.iterdir()) == []
