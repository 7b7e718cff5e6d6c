"""Files that are there already, or that somebody has put where a daemon wants its own."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from remotes import Remote
from strangers import AS_ITSELF, NOBODY, as_root, as_user
from wheeld.config.settings import Config
from wheeld.fsck import run as fsck
from wheeld.resources import takeover, trace_directory
from wheeld.resources.owned import Resources
from wheeld.snapshot.file import make_directory
from wheeld_client import connect
from wheeld_core import segments
from wheeld_core.errors import WheelError

daemon = daemon_process(started=False, for_all=True)


FILES = ["daemon.json", "daemon.new", "clock.fifo", "clock.lock", "control.sock"]
PLANTS = ["symlink", "dangling", "file", "fifo", "hard link", "directory"]


def plant(kind: str, path: Path, victim: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "dangling":
        path.symlink_to(victim.with_name("new"))
    elif kind == "file":
        path.write_text("planted")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "hard link":
        os.link(victim, path)
    else:
        path.mkdir()


@pytest.fixture
def victim(base: Path) -> Iterator[Path]:
    path = base / "outside" / "victim"
    path.parent.mkdir()
    path.write_text("precious")
    path.chmod(0o644)

    def looks() -> Any:
        found = path.lstat()
        return path.read_text(), found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns

    before = looks()
    yield path
    assert looks() == before
    assert sorted(path.parent.iterdir()) == [path]


REFUSED = {
    "symlink": ["daemon.json", "clock.lock"],
    "dangling": ["daemon.json", "clock.lock"],
    "file": [],
    "fifo": ["daemon.json"],
    "hard link": [],
    "directory": FILES,
}


@pytest.mark.parametrize("kind", [kind for kind in PLANTS if REFUSED[kind] != FILES])
def test_files_that_are_there_already(daemon: Daemon, victim: Path, kind: str) -> None:
    for name in FILES:
        if name not in REFUSED[kind]:
            plant(kind, daemon.directory / name, victim)
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.0, 1)
        assert receive(timers, 1)["cookie"].tolist() == [1]
    daemon.stop()
    assert daemon.nothing_left()


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in PLANTS for name in REFUSED[kind]]
)
def test_files_that_are_not_ours(daemon: Daemon, victim: Path, kind: str, name: str) -> None:
    path = daemon.directory / name
    plant(kind, path, victim)
    before = path.lstat()
    assert name in daemon.refused().splitlines()[-1], daemon.said()
    assert daemon.segments() == []
    if kind == "directory" or name == "daemon.json":
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
        path.rmdir() if kind == "directory" else path.unlink()


@pytest.mark.parametrize("kind", PLANTS)
def test_a_workers_fifo_that_is_there_already(daemon: Daemon, victim: Path, kind: str) -> None:
    daemon.start(max_workers=1)
    path = daemon.directory / "worker-0.fifo"
    plant(kind, path, victim)
    if kind == "directory":
        with pytest.raises(Exception, match=r"worker-0\.fifo"):
            connect(str(daemon.directory))
        path.rmdir()
    with connect(str(daemon.directory)) as timers:
        assert stat.S_ISFIFO(path.lstat().st_mode)
        timers.schedule(0.0, 1)
        assert receive(timers, 1)["cookie"].tolist() == [1]


PLANTED = ["worker-0", "worker-1", f"worker-0-{'0' * 16}", "trace", f"trace-{'0' * 16}"]


@pytest.mark.parametrize("kind", ["symlink", "dangling", "file", "hard link", "directory"])
def test_segments_that_are_there_already(
    daemon: Daemon, victim: Path, tmp_path: Path, kind: str
) -> None:
    daemon.start(max_workers=2)
    prefix = str(daemon.facts()["segment_prefix"])
    planted = [Path("/dev/shm", prefix + name) for name in PLANTED]
    for path in planted:
        with contextlib.suppress(OSError):  # a hard link, over file systems
            plant(kind, path, victim)
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    try:
        with connect(str(daemon.directory)) as timers, connect(str(daemon.directory)) as other:
            names = {each._segment_names["worker"] for each in (timers, other)}
            assert all(re.fullmatch(prefix + "worker-[01]-[0-9a-f]{16}", name) for name in names)
            assert names.isdisjoint(path.name for path in planted)
            timers.schedule(0.0, 1)
            assert receive(timers, 1)["cookie"].tolist() == [1]
            daemon.kill()
            daemon.start("--trace", str(tmp_path / "trace"), max_workers=2)
            timers.schedule(0.0, 2)
            assert receive(timers, 1)["cookie"].tolist() == [2]
            assert fsck.run(str(daemon.directory)).damage == 0
    finally:
        for path in planted:
            with contextlib.suppress(FileNotFoundError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_name_that_was_foreseen(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = "0" * 16, "1" * 16
    stem = f"wheeld-{daemon.name}-{taken[:12]}-worker-0"
    tokens = iter([taken, taken, free])
    monkeypatch.setattr(segments, "random_part", lambda count: next(tokens)[: 2 * count])
    memory = segments.create(f"{stem}-{taken}", 4096)
    name, mine = segments.create_unguessable(stem, 4096)
    assert name == f"{stem}-{free}"
    tokens = iter([taken, taken, free])
    prefix = takeover.new_prefix(daemon.directory, daemon.name)
    segments.create(f"{prefix}slots", 4096)
    config = Config(daemon.name, capacity=1024, runtime_dir=str(daemon.base)).check()
    resources = Resources(config)
    try:
        assert resources.segment_prefix == prefix.replace("000000-", "111111-")
        assert resources.damage() is None
    finally:
        resources.close()
    tokens = iter([taken] * 99)
    with pytest.raises(segments.NameTaken):
        segments.create_unguessable(stem, 4096)
    del memory, mine


@as_root
def test_segments_of_others_are_not_a_daemons(daemon: Daemon) -> None:
    prefix = f"wheeld-{daemon.name}-{'0' * 12}-"
    for name in ("slots", f"worker-1-{'3' * 16}", f"worker-1-{'2' * 16}", f"worker-2-{'1' * 16}"):
        segments.create(prefix + name, 4096)
    os.chown(f"/dev/shm/{prefix}worker-2-{'1' * 16}", NOBODY, NOBODY)
    os.chmod(f"/dev/shm/{prefix}worker-1-{'3' * 16}", 0o640)
    Path("/dev/shm", f"{prefix}wheel").symlink_to("/dev/null")
    found = segments.of_daemon(prefix, os.getuid())
    assert found == {"slots": f"{prefix}slots", "worker-1": f"{prefix}worker-1-{'3' * 16}"}


SQUAT = "import sys; [open(sys.argv[1] + str(i), 'x') for i in range(4094)]"


def test_segment_names_that_another_user_took(
    base: Path, daemon_name: str, stranger: list[str]
) -> None:
    base.chmod(0o1777)
    with Daemon(base, daemon_name) as daemon:
        daemon.program = [*stranger, sys.executable, "-c", AS_ITSELF]
        tried = subprocess.run([*daemon.program, "try"], capture_output=True, timeout=60)
        if tried.returncode:
            pytest.skip("another user cannot run this Python")
        daemon.start(max_workers=1)
        stem = f"/dev/shm/{daemon.facts()['segment_prefix']}worker-"
        squatter = ["setpriv", "--reuid=2", "--regid=2", "--clear-groups", sys.executable]
        subprocess.run([*squatter, "-c", SQUAT, stem], check=True)
        try:
            for _ in range(3):
                with Remote(daemon, as_user()) as worker:
                    assert worker.ask("[timers.schedule(0.0, 1) > 0, receive(1)]") == [True, [1]]
                until(lambda: daemon.registry().names() == {}, "gone")
        finally:
            daemon.process.terminate()
            daemon.wait()
            for i in range(4094):
                os.unlink(f"{stem}{i}")


@pytest.mark.parametrize("kind", ["symlink", "dangling", "file", "fifo", "open directory"])
def test_a_runtime_directory_that_is_not_ours(daemon: Daemon, victim: Path, kind: str) -> None:
    if kind == "open directory":
        daemon.directory.mkdir()
        daemon.directory.chmod(0o777)
    elif kind == "symlink":
        daemon.directory.symlink_to(victim.parent)
    else:
        plant(kind, daemon.directory, victim)
    message = daemon.refused()
    assert str(daemon.directory) in message
    assert daemon.segments() == []
    daemon.directory.rmdir() if kind == "open directory" else daemon.directory.unlink()


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_runtime_directory_of_another_user(daemon: Daemon, mode: int) -> None:
    daemon.directory.mkdir()
    os.chown(daemon.directory, NOBODY, NOBODY)
    daemon.directory.chmod(mode)
    assert "is not a directory of this user" in daemon.refused()
    found = daemon.directory.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY, mode)
    assert list(daemon.directory.iterdir()) == []


def test_a_client_takes_no_segment_of_somebody_else(daemon: Daemon) -> None:
    daemon.start()
    other = daemon.segment("other")
    segments.create(other, 4096)
    with contextlib.suppress(PermissionError):
        os.chown(f"/dev/shm/{other}", NOBODY, NOBODY)
        with pytest.raises(segments.SegmentError, match=f"uid {NOBODY}"):
            segments.attach(other, 1, writable=True, owner_uid=os.getuid())
        os.chown(f"/dev/shm/{other}", os.getuid(), os.getgid())
    with pytest.raises(segments.SegmentError, match="not ready"):
        segments.attach(other, 1, writable=True, owner_uid=os.getuid())


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
