"""Who may use a daemon: modes, users, groups."""

import contextlib
import grp
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from remotes import Remote, RemoteError
from strangers import NOBODY, as_root, as_user, group_name
from wheeld_client import connect

daemon = daemon_process(started=False, for_all=True)


# -- modes ------------------------------------------------------------


def modes(daemon: Daemon) -> dict[str, int]:
    found = {".": daemon.directory.stat().st_mode}
    found |= {path.name: path.lstat().st_mode for path in daemon.directory.iterdir()}
    for kind in ("wheel", "slots", "registry", "worker-0"):
        found[kind] = daemon.segment_path(kind).lstat().st_mode
    return found


KINDS = {
    ".": stat.S_IFDIR,
    "control.sock": stat.S_IFSOCK,
    "clock.fifo": stat.S_IFIFO,
    "worker-0.fifo": stat.S_IFIFO,
    **dict.fromkeys(
        ["clock.lock", "daemon.json", "wheel", "slots", "registry", "worker-0"], stat.S_IFREG
    ),
}
PRIVATE = {**dict.fromkeys(KINDS, 0o600), ".": 0o700}
SHARED = {
    **dict.fromkeys(KINDS, 0o660),
    "clock.fifo": 0o620,
    "worker-0.fifo": 0o620,
    ".": 0o710,
    "wheel": 0o640,
    "registry": 0o640,
    "daemon.json": 0o640,
    "clock.lock": 0o600,
}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("group", [False, True])
def test_modes(daemon: Daemon, umask: int, group: bool) -> None:
    """They do not depend on the umask: for the owner alone, or with --group for that group, which
    may not write what only the daemon writes."""
    options = {"group": group_name()} if group else {}
    before = os.umask(umask)
    try:
        daemon.log.touch()
        daemon.log.chmod(0o600)
        daemon.start(**options)
    finally:
        os.umask(before)
    with connect(str(daemon.directory)):
        expected = SHARED if group else PRIVATE
        assert modes(daemon) == {name: kind | expected[name] for name, kind in KINDS.items()}
        if group:
            wanted = grp.getgrnam(group_name()).gr_gid
            paths = [daemon.directory, *daemon.directory.iterdir()]
            paths += [daemon.segment_path(kind) for kind in ("wheel", "slots", "worker-0")]
            groups = {path.name: path.lstat().st_gid for path in paths}
            groups.pop("clock.lock")
            assert set(groups.values()) == {wanted}, groups
        daemon.kill()
        daemon.start(**options)
        assert modes(daemon) == {name: kind | expected[name] for name, kind in KINDS.items()}


# -- others ------------------------------------------------------------

TRY_ALL = """
import os, sys
opened = []
for path in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        try:
            os.open(path, flags | os.O_NONBLOCK)
            opened.append(path)
        except PermissionError:
            pass
        except OSError as error:
            opened.append(f"{path}: {error}")
print(*opened, sep="\\n", end="")
"""


def paths_of(daemon: Daemon) -> list[str]:
    shm = [Path("/dev/shm", name) for name in daemon.segments()]
    return [str(path) for path in [*shm, *daemon.directory.iterdir()]]


def test_another_user(daemon: Daemon, stranger: list[str]) -> None:
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        with pytest.raises(RemoteError, match=r"PermissionError.*another user"):
            Remote(daemon, stranger)
        command = [*stranger, sys.executable, "-c", TRY_ALL, *paths_of(daemon)]
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (tried.returncode, tried.stdout) == (0, ""), tried
        daemon.directory.chmod(0o755)  # the directory is not what protects the rest
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (tried.returncode, tried.stdout) == (0, ""), tried
        with pytest.raises(RemoteError, match="PermissionError"):
            Remote(daemon, stranger)
        daemon.directory.chmod(0o700)
        timers.schedule(0.0, 1)
        assert receive(timers, 1)["cookie"].tolist() == [1]
        assert len(daemon.workers()) == 1


def test_a_socket_that_everybody_can_reach(daemon: Daemon, stranger: list[str]) -> None:
    """The kernel says who calls: another user is refused, by uid and with the way out, whatever the
    modes are."""
    daemon.start()
    daemon.directory.chmod(0o755)
    (daemon.directory / "control.sock").chmod(0o777)
    with pytest.raises(RemoteError, match=f"PermissionError: uid {NOBODY} may not use.*--group"):
        Remote(daemon, stranger)
    for op in ("status", "stop", "advance"):
        ask = f"control.Connection(Path({str(daemon.directory)!r})).request({op!r})"
        code = f"from pathlib import Path; from wheeld_core import control; {ask}"
        command = [*stranger, sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "PermissionError" in done.stderr, done
    assert daemon.workers() == {}


@pytest.mark.parametrize("way", ["its own group", "a supplementary group"])
def test_a_member_of_the_group(daemon: Daemon, stranger: list[str], way: str) -> None:
    name, gid = ("nogroup", NOBODY) if way == "its own group" else ("users", 100)
    with contextlib.suppress(KeyError):
        gid = grp.getgrnam(name).gr_gid
    daemon.start(group=grp.getgrgid(gid).gr_name)
    member = as_user(gid) if way == "a supplementary group" else stranger
    with (
        connect(str(daemon.directory), worker="owner") as timers,
        Remote(daemon, member, worker="m", on_death="keep", group="g") as worker,
    ):
        assert worker.ask("[timers.schedule(0.0, 1) > 0, receive(1)]") == [True, [1]]
        assert worker.ask("timers.cancel(timers.schedule(1000.0))") is True
        assert worker.ask("timers.schedule(0.0, 2, to='owner') > 0") is True
        assert receive(timers, 1)["cookie"].tolist() == [2]
        timers.schedule(0.0, 3, to="group:g")
        assert worker.ask("receive(1)") == [3]
        worker.ask("timers.schedule_many([1000.0] * 10).tolist()")
        command = [*member, sys.executable, "-c", TRY_ALL]
        for kind in ("wheel", "registry"):
            path = str(daemon.segment_path(kind))
            tried = subprocess.run([*command, path], capture_output=True, text=True, timeout=60)
            assert tried.stdout == path, "it may read, and nothing else"
        worker.kill()
        until(lambda: daemon.workers()["m"]["state"] == "kept", "kept")
        with Remote(daemon, member, worker="m", on_death="drop") as heir:
            assert heir.ask("[timers.adopted, timers.pending]") == [True, 10]
            heir.ask("timers.close()")
    until(lambda: daemon.workers() == {}, "gone")


@as_root
def test_not_a_member(daemon: Daemon, stranger: list[str]) -> None:
    daemon.start(group="users")
    with pytest.raises(RemoteError, match="PermissionError"):
        Remote(daemon, stranger)
    assert daemon.workers() == {}
