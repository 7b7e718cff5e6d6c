"""Strangers' files where a client looks for its daemon: never used, never written through."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_supervisor import StandIn
from local_wheel import LocalWheel
from strangers import NOBODY, as_root, as_user, run_as_stranger
from wheeld.resources import remains
from wheeld_client import Timers, connect
from wheeld_client.timers.observer import Observer
from wheeld_core import _native, control, runtime, segments, trust
from wheeld_core.control import Message
from wheeld_core.views import expiration_dtype, record


@pytest.fixture
def place(runtime_dir: Path) -> Path:
    runtime_dir.chmod(0o755)
    directory = runtime_dir / "default"
    directory.mkdir(mode=0o700)
    (directory / runtime.CONTROL_SOCKET).touch()
    (directory / runtime.DAEMON_FILE).touch()
    return directory


def refused(directory: Path, words: str) -> None:
    for name, base in (("default", directory.parent), (str(directory), None)):
        for use in (connect, Observer, runtime.find, remains.find):
            with pytest.raises(PermissionError, match=words):
                use(name, runtime_dir=base)
    with pytest.raises(PermissionError, match=words):
        control.Connection(directory)


def test_ones_own(place: Path) -> None:
    for mode in (0o700, 0o755, 0o1777):
        place.parent.chmod(mode)
        assert runtime.find("default", place.parent) == place
    for mode in (0o700, 0o750, 0o755):
        place.chmod(mode)
        assert runtime.find("default", place.parent) == place
    (place.parent / "base").symlink_to(place.parent)
    (place.parent / "other").symlink_to(place)
    assert runtime.find("other", place.parent / "base").name == "other"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o722, 0o702])
def test_a_directory_that_others_may_write(place: Path, mode: int) -> None:
    place.chmod(mode)
    refused(place, "written by users other")


def test_a_base_that_all_may_write(place: Path) -> None:
    place.parent.chmod(0o777)
    refused(place, f"{place.parent} can be written by all")


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_directory_of_another_user(place: Path, mode: int) -> None:
    os.chown(place, NOBODY, NOBODY)
    place.chmod(mode)
    refused(place, "another user|written by users other")


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_base_of_another_user(place: Path, mode: int) -> None:
    os.chown(place.parent, NOBODY, NOBODY)
    place.parent.chmod(mode)
    refused(place, "another user")


@as_root
@pytest.mark.parametrize("which", ["base", "directory"])
def test_a_link_of_another_user(place: Path, which: str) -> None:
    place.parent.chmod(0o1777)
    link = place.parent / "link"
    link.symlink_to(place.parent if which == "base" else place)
    os.lchown(link, NOBODY, NOBODY)
    if which == "base":
        with pytest.raises(PermissionError, match="link made by"):
            connect("default", runtime_dir=link)
    with pytest.raises(PermissionError, match="link made by"):
        connect(str(link / "default" if which == "base" else link))


GROUP = 12345
"""Of nobody, but of whom a test puts there."""
LOOK = """
import sys
from wheeld_core import runtime
try:
    print(runtime.find(sys.argv[1]))
except PermissionError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    ("groups", "mode", "base_owner", "base_mode", "found"),
    [
        ((GROUP,), 0o750, 0, 0o755, True),
        ((GROUP,), 0o750, 2, 0o755, True),
        ((), 0o755, 0, 0o755, False),
        ((GROUP,), 0o705, 0, 0o755, False),
        ((GROUP,), 0o750, 0, 0o1777, False),
        ((GROUP,), 0o770, 0, 0o755, False),
        ((GROUP,), 0o750, 3, 0o755, False),
    ],
)
def test_a_daemon_for_a_group(
    place: Path, groups: tuple[int, ...], mode: int, base_owner: int, base_mode: int, found: bool
) -> None:
    stranger = run_as_stranger()
    assert stranger
    above = place.parent / "above"
    base = above / "base"
    directory = base / "default"
    directory.mkdir(parents=True)
    (directory / runtime.CONTROL_SOCKET).touch()
    above.chmod(0o755)
    os.chown(base, base_owner, base_owner)
    base.chmod(base_mode)
    os.chown(directory, 2, GROUP)
    directory.chmod(mode)
    os.chmod(place.parent, 0o755)
    command = [*as_user(*groups), sys.executable, "-c", LOOK, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(str(directory)) == found, done.stdout
    assert done.stdout.startswith("refused:") != found


LISTEN = """
import socket, sys
end = socket.socket(socket.AF_UNIX)
end.bind(sys.argv[1])
end.listen()
print("ready", flush=True)
sys.stdin.read()
"""


def test_another_user_at_the_socket(place: Path) -> None:
    stranger = run_as_stranger()
    path = place / runtime.CONTROL_SOCKET
    path.unlink()
    place.chmod(0o777)  # once it was open to all
    command = [*stranger, sys.executable, "-c", LISTEN, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        place.chmod(0o755)
        with pytest.raises(PermissionError, match=f"a process of uid {NOBODY} listens"):
            connect(str(place))
        process.communicate()


# -- what it says ------------------------------------------------------------


class Liar(StandIn):
    """Says what a test wants in its answer to a hello."""

    def __init__(self, base: Path) -> None:
        self.lies: dict[str, Any] = {}
        super().__init__(base)

    def _arrive(self, message: Message) -> Message:
        said = super()._arrive(message)
        names = {**said["segments"], **self.lies.get("segments", {})}
        return {**said, **self.lies, "segments": names}


@pytest.fixture
def liar(runtime_dir: Path) -> Iterator[Liar]:
    with Liar(runtime_dir) as liar:
        yield liar


@pytest.fixture
def victim(runtime_dir: Path) -> Iterator[Path]:
    path = runtime_dir / "victim"
    path.write_text("precious")
    path.chmod(0o600)
    yield path
    assert path.read_text() == "precious"


def lie(liar: Liar, error: type[Exception], words: str, **lies: Any) -> None:
    liar.lies = lies
    with pytest.raises(error, match=words):
        connect(liar.name, timeout=5).schedule(0.0)


@pytest.mark.parametrize("bell", ["clock_fifo", "worker_fifo"])
def test_a_bell_elsewhere(liar: Liar, victim: Path, bell: str) -> None:
    for name in (str(victim), "../victim", "", ".", "..", "a\0b", 7, None):
        lie(liar, PermissionError, "not a plain file name", **{bell: name})
    (liar.directory / "link").symlink_to(victim)
    lie(liar, OSError, "symbolic links", **{bell: "link"})
    os.link(victim, liar.directory / "hard")
    lie(liar, PermissionError, "is not a FIFO", **{bell: "hard"})


@as_root
def test_a_bell_of_another_user(liar: Liar) -> None:
    path = liar.directory / "theirs"
    os.mkfifo(path, 0o600)
    os.chown(path, NOBODY, NOBODY)
    lie(liar, PermissionError, "is not a FIFO", clock_fifo="theirs")


@pytest.mark.parametrize("kind", ["wheel", "slots", "registry", "worker"])
def test_a_segment_elsewhere(liar: Liar, victim: Path, kind: str) -> None:
    for name in (str(victim), f"../..{victim}", "..", 7):
        lie(liar, PermissionError, "not a plain file name", segments={kind: name})


def test_a_segment_that_is_open_to_all(liar: Liar) -> None:
    with connect(liar.name) as timers:
        name = timers._segment_names["slots"]
        os.chmod(f"/dev/shm/{name}", 0o666)
    lie(liar, segments.SegmentError, "open to all users")


# -- what it writes ------------------------------------------------------------

LIES = {
    "capacity": [0, 63, 1 << 20, 2**32 - 64],
    "max_workers": [0, 4094, 2**32 - 1],
    "wheel_bits": [0, 7, 64, 2**32 - 1],
    "payload_bytes": [8, 7, 65536, 2**32 - 8],
    "tick_ns": [0, -1],
}


@pytest.mark.parametrize("field", LIES)
def test_sizes_that_are_not_the_segments(field: str) -> None:
    with LocalWheel() as wheel:
        worker = wheel.worker()
        bell = wheel.bells[0]
        head = record(wheel.wheel_memory, "wheel")
        was = int(head[field])
        memories = (wheel.wheel_memory, wheel.slots_memory, wheel.registry_memory)
        try:
            for value in LIES[field]:
                head[field] = value
                with pytest.raises(ValueError, match=r"out of range|too short|events of"):
                    Timers.__new__(Timers)._bind(
                        *memories,
                        wheel.worker_memories[0],
                        wheel.keys_memory,
                        0,
                        1,
                        *bell,
                        -1,
                        wheel.dtype,
                        np.empty,
                    )
        finally:
            head[field] = was
        assert worker.schedule(1.0)


def test_events_of_another_size() -> None:
    with LocalWheel(payload_bytes=64) as wheel:
        wheel.worker()
        memories = (wheel.wheel_memory, wheel.slots_memory, wheel.registry_memory)
        with pytest.raises(ValueError, match="events of 40 bytes, expected 104 for this wheel"):
            Timers.__new__(Timers)._bind(
                *memories, wheel.worker_memories[0], wheel.keys_memory, 0, 1, *wheel.bells[0], -1,
                expiration_dtype(0), np.empty,
            )  # fmt: skip


def test_sizes_are_read_once() -> None:
    with LocalWheel() as wheel:
        worker, other = wheel.worker(), wheel.worker(1, "other")
        for memory, kind in (
            (wheel.registry_memory, "registry"),
            (wheel.slots_memory, "slots"),
            (wheel.wheel_memory, "wheel"),
        ):
            fields = record(memory, kind)
            for field in fields.dtype.names:
                if field.endswith("_off") or field in ("row_count", "capacity", "payload_bytes"):
                    fields[field] = 2**31
        for to in ("other", "group:none", "none"):
            if to == "other":
                assert worker.schedule(1.0, to=to)
            else:
                with pytest.raises(ValueError, match="no worker"):
                    worker.schedule(1.0, to=to)
        assert other.cancel(worker.schedule(1.0))


def test_plain_names() -> None:
    assert trust.plain("worker-0.fifo") == "worker-0.fifo"
    with pytest.raises(PermissionError, match="not a plain file name"):
        segments.attach("../etc/passwd", _native.KIND_SLOTS, writable=True)
