"""The snapshot's file: whole or not at all, and nothing but what was written is ever read."""

import errno
import hashlib
import os
import socket
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapshots import snapshot_of, some_timers
from wheeld.snapshot import file as snapshot_file
from wheeld.snapshot.contents import Clocks, Snapshot, SnapshotError
from wheeld.snapshot.file import make_directory, path_of, read, set_aside, write
from wheeld_core.errors import WheelError

CLOCKS = Clocks(10, 20, 30, "a-boot")


def small(cookie: int = 7) -> Snapshot:
    timers = some_timers(3, cookie=cookie, payload_size=[1, 0, 4])
    return snapshot_of(timers, CLOCKS, capacity=64)


def same(left: Snapshot, right: Snapshot) -> bool:
    return all(np.array_equal(value, vars(right)[key]) for key, value in vars(left).items())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = path_of(tmp_path, "web")
    write(path, small())
    return path


# -- write ---------------------------------------------------------------------------------------


def test_it_is_read_as_it_was_written(path: Path) -> None:
    assert path.name == "web.snapshot"
    assert same(read(path), small())
    nothing = snapshot_of(some_timers(0), CLOCKS, names=())
    assert write(path, nothing) == path.stat().st_size
    assert same(read(path), nothing)


@pytest.mark.parametrize("umask", [0, 0o777])
def test_only_the_owner_may_read_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "s", small())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


class Crash(BaseException):
    """The host is gone: from here on nothing reaches the disk."""


CALLS = ("unlink", "open", "fchmod", "write", "fsync", "close", "rename")


def count_calls(
    monkeypatch: pytest.MonkeyPatch, at_call: Callable[[int, str], None]
) -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = []

    def spy(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def spied(*arguments: Any) -> Any:
            at_call(len(made), name)
            target = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else None
            made.append((name, target))
            return call(*arguments)

        return spied

    for name in CALLS:
        monkeypatch.setattr(snapshot_file.os, name, spy(name, getattr(os, name)))
    return made


def test_a_crash_at_any_step_leaves_one_whole_snapshot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = small(1), small(2)
    with monkeypatch.context() as patch:
        made = count_calls(patch, lambda number, name: None)
        write(path, new)
        steps = len(made)
    names = [name for name, _ in made]
    assert steps > 8
    for step in range(steps):
        write(path, old)

        def crash(number: int, name: str, step: int = step) -> None:
            if number >= step:
                raise Crash

        with monkeypatch.context() as patch:
            count_calls(patch, crash)
            with pytest.raises(Crash):
                write(path, new)
        assert same(read(path), new if step > names.index("rename") else old), names[:step]


def test_it_is_durable_before_it_takes_the_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = count_calls(monkeypatch, lambda number, name: None)
    write(path, small())
    names = [name for name, _ in made]
    rename = names.index("rename")
    synced = [(number, target) for number, (name, target) in enumerate(made) if name == "fsync"]
    assert [target for _, target in synced] == [f"{path}.new", str(path.parent)]
    last_write = max(number for number, name in enumerate(names) if name == "write")
    assert last_write < synced[0][0] < rename < synced[1][0]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_what_the_system_refuses_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(number: int, name: str) -> None:
        if name == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        count_calls(patch, refuse)
        with pytest.raises(SnapshotError, match="No space left") as caught:
            write(path, small(2))
    assert str(path) in str(caught.value)
    assert same(read(path), small())
    assert os.listdir(path.parent) == [path.name]


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(snapshot_file.os, "write", lambda fd, data: real(fd, data[:5]))
    write(path, small(3))
    assert same(read(path), small(3))


def test_two_writers_do_not_meet(path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        sizes = set(pool.map(lambda cookie: write(path, small(cookie)), range(200)))
    assert sizes == {path.stat().st_size}
    read(path)


def test_a_symbolic_link_in_the_way_is_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("mine")
    path.with_name(path.name + ".new").symlink_to(victim)
    path.unlink()
    path.symlink_to(victim)
    write(path, small())
    assert victim.read_text() == "mine"
    assert not path.is_symlink()


# -- read ----------------------------------------------------------------------------------------


def test_there_may_be_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.snapshot")


def test_truncated_at_any_byte_or_with_bytes_behind(path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(SnapshotError, match="truncated"):
            read(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(SnapshotError, match="torn"):
        read(path)


def test_any_bit_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(len(content)):
        for bit in range(8) if place < 32 else [place % 8]:
            content[place] ^= 1 << bit
            path.write_bytes(content)
            with pytest.raises(SnapshotError):
                read(path)
            content[place] ^= 1 << bit
    path.write_bytes(content)
    assert same(read(path), small())


def test_torn(path: Path) -> None:
    content = path.read_bytes()
    for begin in range(0, len(content), 64):
        hole = content[begin : begin + 64]
        torn = content[:begin] + bytes(len(hole)) + content[begin + len(hole) :]
        path.write_bytes(torn)
        with pytest.raises(SnapshotError):
            read(path)


def test_messages_say_what_is_wrong(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()
    path.write_bytes(b"GIF89a" + content)
    with pytest.raises(SnapshotError, match="not a wheeld snapshot"):
        read(path)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SnapshotError, match="SHA-256"):
        read(path)
    monkeypatch.setattr(snapshot_file, "FORMAT_VERSION", 3)
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match="version 2; this wheeld reads version 3"):
        read(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"capacity": 0}, "below the capacity"),
        ({"names": ()}, "known owners"),
        ({"payload_bytes": 3}, "payloads that fit"),
        ({"payloads": np.zeros(2, np.uint8)}, "bytes of payload"),
        ({"slabs": np.array([], np.uint32), "generations": np.zeros((0, 64), np.uint32)}, "used"),
        ({"timers": some_timers(2, slot=[1, 1])}, "in order"),
        ({"timers": some_timers(1, flags=3)}, "clocks"),
        ({"timers": some_timers(1, to=1, target=1)}, "targets"),
        ({"timers": some_timers(1, to=2)}, "targets"),
        ({"timers": some_timers(1, to=3)}, "targets"),
        ({"timers": some_timers(1, generation=0)}, "generations"),
        ({"timers": some_timers(1, interval=-1)}, "intervals"),
    ],
)
def test_a_sound_file_with_nonsense_in_it(path: Path, changed: dict[str, Any], words: str) -> None:
    write(path, replace(small(), **changed))
    with pytest.raises(SnapshotError, match=words):
        read(path)


def test_a_sound_file_with_more_in_it_than_it_counts(path: Path) -> None:
    content = path.read_bytes()
    prefix = snapshot_file._PREFIX
    magic, version, header, body = prefix.unpack_from(content)
    longer = prefix.pack(magic, version, header, body + 8) + content[prefix.size : -32] + bytes(8)
    path.write_bytes(longer + hashlib.sha256(longer).digest())
    with pytest.raises(SnapshotError, match="its counts say"):
        read(path)


@pytest.mark.parametrize("kind", ["directory", "link", "fifo", "socket", "device"])
def test_not_a_regular_file(path: Path, kind: str) -> None:
    real = path.with_name("real")
    path.rename(real)
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(real)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path = Path("/dev/null")
    with pytest.raises(SnapshotError, match="not a regular file"):
        read(path)


def test_of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file.os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(SnapshotError, match="belongs to uid"):
        read(path)


def test_what_cannot_be_read_may_be_sound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(snapshot_file.os, "open", refuse)
    with pytest.raises(WheelError, match="Too many open files") as caught:
        read(path)
    assert not isinstance(caught.value, SnapshotError)


# -- around it -----------------------------------------------------------------------------------


def test_set_aside_keeps_every_refused_file(path: Path) -> None:
    kept = []
    for number in range(3):
        path.write_text(str(number))
        kept.append(set_aside(path))
        assert not path.exists()
    assert [old.read_text() for old in kept] == ["0", "1", "2"]
    assert all(old.name.startswith("web.snapshot.refused-2") for old in kept)
    path.symlink_to("nowhere")
    assert set_aside(path).is_symlink()


def test_the_directory_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert make_directory(made) == made
    made.chmod(0o770)
    with pytest.raises(WheelError, match="0770"):
        make_directory(made)
    (tmp_path / "file").write_text("")
    with pytest.raises(WheelError, match="exists"):
        make_directory(tmp_path / "file")
    made.chmod(0o700)
    monkeypatch.setattr(snapshot_file.os, "geteuid", lambda: made.stat().st_uid + 1)
    with pytest.raises(WheelError, match="uid"):
        make_directory(made)
