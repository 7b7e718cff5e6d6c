"""Links to a daemon's files, and what is written into its daemon.json, by those who may: nothing of
it costs a worker, a clock, or the wheel."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from children import receive
from daemons import Daemon, until
from remotes import Remote
from strangers import GROUP, OTHER, as_root, member
from wheeld.fsck import run as fsck
from wheeld.resources import takeover
from wheeld_client import connect
from wheeld_client.timers.observer import Observer


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str) -> Iterator[Daemon]:
    runtime_dir.chmod(0o755)
    with Daemon(runtime_dir, daemon_name) as daemon:
        yield daemon
    for path in Path("/dev/shm").glob(f"link-{daemon_name}-*"):
        path.unlink()


LINK = """
import os, sys
for pair in sys.argv[1:]:
    os.link(*pair.split("="))
"""


def link(before: list[str], pairs: list[tuple[Path, Path]]) -> None:
    words = [f"{to}={name}" for to, name in pairs]
    done = subprocess.run([*before, sys.executable, "-c", LINK, *words], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@as_root
@pytest.mark.parametrize("by", ["a member", "root"])
def test_links_to_segments(daemon: Daemon, by: str) -> None:
    daemon.start(group=GROUP)
    kinds = ["slots", "watch", "pools", "worker-0"]
    with connect(str(daemon.directory), worker="a") as timers:
        paths = [daemon.segment_path(kind) for kind in kinds]
        if by == "root":
            paths += [daemon.segment_path(kind) for kind in ("wheel", "registry")]
            paths += [daemon.directory / name for name in ("clock.fifo", "worker-0.fifo")]
        names = [Path("/dev/shm", f"link-{daemon.name}-{i}") for i in range(len(paths))]
        if by == "root":
            names[-2:] = [daemon.directory / "link-0", daemon.directory / "link-1"]
        link(member(OTHER) if by == "a member" else [], list(zip(paths, names, strict=True)))
        timers.schedule(1000.0)
        with Remote(daemon, member(OTHER)) as other:
            daemon.kill_clock()
            assert other.ask("[timers.schedule(0.0, 1) > 0, receive(1)]") == [True, [1]]
            daemon.kill()
            daemon.start(group=GROUP)
            assert other.ask("[timers.schedule(0.0, 2) > 0, receive(1)]") == [True, [2]]
        assert timers.pending == 1
        assert fsck.run(str(daemon.directory)).damage == 0
        with connect(str(daemon.directory)) as third:
            third.schedule(0.0, 3)
            assert receive(third, 1)["cookie"].tolist() == [3]


@as_root
def test_links_in_place_of_segments(daemon: Daemon) -> None:
    daemon.start(group=GROUP)
    prefix = f"/dev/shm/{daemon.facts()['segment_prefix']}"
    with connect(str(daemon.directory), worker="a") as first, Remote(daemon, worker="b") as second:
        for timers_arm in (
            lambda: first.schedule(0.0, 1),
            lambda: second.ask("timers.schedule(0.0, 2)"),
        ):
            timers_arm()
        until(lambda: daemon.header("fired") == 2, "both fired")
        segment = daemon.segment_path("worker-0")
        planted = [Path(f"{prefix}{kind}-{'f' * 16}") for kind in ("worker-1", "trace", "worker-0")]
        link(member(OTHER), [(segment, path) for path in planted])
        daemon.kill()
        daemon.start(group=GROUP)
        with Observer(str(daemon.directory)) as observer:
            assert [observer.unread("a"), observer.unread("b")] == [1, 1]
        assert receive(first, 1)["cookie"].tolist() == [1]
        assert second.ask("receive(1)") == [2]
        assert fsck.run(str(daemon.directory)).damage == 0
        assert "no usable segment" not in daemon.said()
    daemon.stop()
    assert daemon.nothing_left()


WRITE = "import sys; open(sys.argv[1], 'r+').write('x')"


@as_root
def test_members_do_not_write_what_the_daemon_says_of_itself(daemon: Daemon) -> None:
    daemon.start(group=GROUP)
    path = daemon.directory / "daemon.json"
    before = path.read_bytes()
    line = [*member(OTHER), sys.executable, "-c", WRITE, str(path)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert "PermissionError" in done.stderr
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("how", ["of a former version", "of another user", "of nobody"])
def test_a_prefix_that_others_could_have_written(daemon: Daemon, how: str) -> None:
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        timers.schedule(1000.0)
        daemon.kill()
        path = daemon.directory / "daemon.json"
        prefix = daemon.facts()["segment_prefix"]
        foreign = f"wheeld-{daemon.name}-{'0' * 12}-"
        victim = Path("/dev/shm", f"{foreign}slots")
        victim.touch()
        if how == "of another user":
            with contextlib.suppress(PermissionError):
                os.chown(victim, OTHER, OTHER)
        elif how == "of nobody":
            victim.unlink()
        path.write_text(path.read_text().replace(prefix, foreign))
        if how == "of a former version":
            path.chmod(0o660)
        daemon.start()
        assert daemon.status()["pending"] == 1
        assert victim.exists() == (how != "of nobody")
        timers.schedule(0.0, 1)
        assert receive(timers, 1)["cookie"].tolist() == [1]


def test_a_file_that_others_may_write_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text('{"segment_prefix": "x"}')
    path.chmod(0o644)
    assert takeover._facts(tmp_path) == {"segment_prefix": "x"}
    for mode in (0o664, 0o646):
        path.chmod(mode)
        assert takeover._facts(tmp_path) == {}
