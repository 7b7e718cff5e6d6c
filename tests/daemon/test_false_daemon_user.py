"""A daemon of another user, run as that user, whose group a client is in and which it so believes:
what it can have the client do."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from programs import SUPPORT
from remotes import Remote, RemoteError
from strangers import NOBODY, OTHER, as_root, as_user, member
from wheeld_core import control, segments

pytestmark = as_root

SCRIPT = SUPPORT / "false_daemon.py"


class False_:
    def __init__(self, base: Path) -> None:
        base.mkdir()
        os.chown(base, OTHER, OTHER)
        base.chmod(0o755)
        self.process = subprocess.Popen(
            [*member(OTHER), sys.executable, str(SCRIPT), str(base), str(NOBODY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.directory = Path(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def order(self, **orders: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(orders).encode() + b"\n")
        self.process.stdin.flush()
        while self.line() != "ok":
            pass

    def caught(self, words: str, **orders: Any) -> None:
        self.order(**orders)
        with pytest.raises(RemoteError, match=words):
            Remote(self.directory, as_user(), timeout=1.0)


@pytest.fixture(scope="module")
def false() -> Iterator[False_]:
    with tempfile.TemporaryDirectory(prefix="wt-") as base:
        Path(base).chmod(0o755)
        daemon = False_(Path(base) / "theirs")
        with daemon.process:
            yield daemon
            daemon.process.communicate()
        assert daemon.process.returncode == 0


@pytest.fixture
def victim(runtime_dir: Path) -> Iterator[Path]:
    path = runtime_dir / "victim"
    path.write_text("precious")
    path.chmod(0o600)
    os.chown(path, NOBODY, NOBODY)
    yield path
    assert path.read_text() == "precious"


def test_it_is_believed(false: False_) -> None:
    false.order(how="pass", kind="a bell")
    with Remote(false.directory, as_user()) as worker:
        assert worker.ask("timers.schedule(1000.0) > 0") is True


@pytest.mark.parametrize("bell", ["clock_fifo", "worker_fifo"])
def test_files(false: False_, victim: Path, bell: str) -> None:
    for name in (str(victim), "..", 7):
        false.caught("PermissionError.*not a plain file name", lies={bell: name})
    link, hard = false.directory / f"link-{bell}", false.directory / f"hard-{bell}"
    subprocess.run([*member(OTHER), "ln", "-s", str(victim), str(link)], check=True)
    false.caught("OSError.*symbolic links", lies={bell: link.name})
    os.link(victim, hard)  # as where fs.protected_hardlinks is off
    false.caught("PermissionError.*is not a FIFO", lies={bell: hard.name})


@pytest.mark.parametrize("kind", ["wheel", "slots", "registry", "worker"])
def test_segments(false: False_, victim: Path, kind: str, daemon_name: str) -> None:
    for name in (f"../..{victim}", 7):
        false.caught("PermissionError.*not a plain file name", lies={"segments": {kind: name}})
    name = f"wheeld-{daemon_name}-theirs"
    segments.create(name, 4096)
    os.chown(f"/dev/shm/{name}", NOBODY, NOBODY)
    try:
        words = f"SegmentError.*belongs to uid {NOBODY}, expected {OTHER}"
        false.caught(words, lies={"segments": {kind: name}})
    finally:
        segments.unlink(name)


@pytest.mark.parametrize(
    "head", [{"capacity": 1 << 20}, {"max_workers": 4093}, {"payload_bytes": 65528}, {"tick_ns": 0}]
)
def test_sizes(false: False_, head: dict[str, int]) -> None:
    false.caught(r"ValueError.*(out of range|too short|events of|smaller than)", head=head)


KINDS = ["a FIFO to write", "a FIFO to read", "a pipe", "a file", "a memory file", "a directory",
         "a device", "a socket"]  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, "a FIFO to look at"])
def test_bells(false: False_, kind: str) -> None:
    false.caught("PermissionError.*(is not a FIFO|without read and write)", how="pass", kind=kind)


def test_a_bell_of_the_clients_own(false: False_) -> None:
    path = false.directory / "theirs"
    os.mkfifo(path, 0o600)
    os.chown(path, NOBODY, NOBODY)
    for bell in ("clock_fifo", "worker_fifo"):
        false.caught("PermissionError.*is not a FIFO", lies={bell: "theirs"})


def test_more_descriptors_than_anybody_needs(false: False_) -> None:
    false.order(how="descriptors")
    with Remote(false.directory, ["prlimit", "--nofile=64:64", *as_user()]) as worker:
        assert worker.ask("len(os.listdir('/proc/self/fd'))") < 20


def test_an_answer_that_drips(false: False_) -> None:
    false.caught("DaemonNotRunning.*timed out", how="drip")


def test_an_answer_without_an_end(false: False_) -> None:
    false.order(how="flood")
    with pytest.raises(RemoteError, match=r"DaemonNotRunning.*(too long|timed out)"):
        Remote(false.directory, as_user(), timeout=60.0)
    assert control.MAX_ANSWER <= 1 << 26


WRONG: dict[str, Any] = {
    "row": ["x", 2**31, "absent"],
    "incarnation": [-1, None],
    "token": ["x", []],
    "segments": [7, "absent"],
    "worker": ["absent"],
    "keep_for_s": [[]],
    "worker_fifo": ["absent"],
}


@pytest.mark.parametrize("field", WRONG)
def test_values_of_other_types(false: False_, field: str) -> None:
    for value in WRONG[field]:
        words = "WheelError: .*not a compatible|PermissionError|ValueError|no longer serves"
        false.caught(words, lies={field: value}, how="pass", kind="a bell")


HEAR = """
import os, socket, sys
os.mkdir(sys.argv[1], 0o755)
end = socket.socket(socket.AF_UNIX)
end.bind(sys.argv[1] + "/control.sock")
os.chmod(sys.argv[1] + "/control.sock", 0o666)
open(sys.argv[1] + "/daemon.json", "w").write("{}")
end.listen()
print("ready", flush=True)
sys.stdin.read()
end.setblocking(False)
try:
    print("somebody came", end.accept()[0].recv(1000))
except BlockingIOError:
    print("nobody")
"""


def test_one_that_came_first(runtime_dir: Path) -> None:
    runtime_dir.chmod(0o1777)
    base = runtime_dir / f"wheeld-{NOBODY}"
    place = base / "default"
    make = f"import os, sys; os.mkdir({str(base)!r}, 0o755)"
    subprocess.run([*member(OTHER), sys.executable, "-c", make], check=True)
    command = [*member(OTHER), sys.executable, "-c", HEAR, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for before in (as_user(OTHER), []):
            with pytest.raises(RemoteError, match=r"PermissionError.*another user"):
                Remote(place, before)
            for word in ("status", "stop"):
                line = [*before, sys.executable, "-m", "wheeld", word, "--name", str(place)]
                done = subprocess.run(line, capture_output=True, text=True, timeout=60)
                assert "Traceback" not in done.stderr, done.stderr
        assert process.communicate()[0] == b"nobody\n"
