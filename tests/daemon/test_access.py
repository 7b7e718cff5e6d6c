"""Who may use a daemon: modes, users, groups."""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from remotes import Remote, RemoteError
from strangers import GROUP, NOBODY, OTHER, as_root, as_user, group_name, member, run_as_stranger
from wheeld.config.settings import Config, ConfigError
from wheeld.resources import takeover
from wheeld.snapshot.file import read
from wheeld.supervisor import logs
from wheeld.tables.registry import ANY_UID, Registry, Tenant
from wheeld_client import connect
from wheeld_core.errors import WheelError

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
        with Remote(daemon, member, worker="m", on_death="drop") as successor:
            assert successor.ask("[timers.adopted, timers.pending]") == [True, 10]
            successor.ask("timers.close()")
    until(lambda: daemon.workers() == {}, "gone")


@as_root
def test_not_a_member(daemon: Daemon, stranger: list[str]) -> None:
    daemon.start(group="users")
    with pytest.raises(RemoteError, match="PermissionError"):
        Remote(daemon, stranger)
    assert daemon.workers() == {}


ADMINS = 100


def asked(daemon: Daemon, before: list[str], *command: str) -> tuple[int, str]:
    line = [*before, sys.executable, "-m", "wheeld", *command, "--name", str(daemon.directory)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


# -- requests ------------------------------------------------------------


@as_root
def test_only_its_owner_ends_a_daemon(daemon: Daemon) -> None:
    daemon.start(group=GROUP, virtual_clock=True)
    for before in (run_as_stranger(), member(OTHER), member(OTHER, ADMINS)):
        assert asked(daemon, before, "status")[0] == 0
        for command in (["stop"], ["advance", "1s"], ["evict", "somebody"], ["drain", "x"]):
            code, words = asked(daemon, before, *command)
            assert code == 1
            assert f"may not run `wheeld {command[0]}`" in words
            assert "--admin-group" in words
    assert daemon.status()["virtual_now_ns"] == 0
    assert asked(daemon, [], "advance", "1s") == (0, "1000000000 ns\n")
    assert asked(daemon, [], "stop")[0] == 0
    assert daemon.wait() == 0


@as_root
def test_members_of_the_admin_group_may(daemon: Daemon) -> None:
    admins = grp.getgrgid(ADMINS).gr_name
    daemon.start(group=GROUP, admin_group=admins, virtual_clock=True)
    code, words = asked(daemon, member(OTHER), "stop")
    assert (code, f"members of {admins!r}" in words) == (1, True)
    assert daemon.status()["admin_group"] == admins
    assert asked(daemon, member(OTHER, ADMINS), "advance", "1s")[0] == 0
    assert asked(daemon, member(OTHER, ADMINS), "stop")[0] == 0
    assert daemon.wait() == 0


@as_root
def test_administrators_alone_do_not_come_in(daemon: Daemon) -> None:
    daemon.start(group=GROUP, admin_group=grp.getgrgid(ADMINS).gr_name)
    outside = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", f"--groups={ADMINS}"]
    code, words = asked(daemon, outside, "stop")
    assert (code, "no access" in words) == (1, True), words
    assert daemon.status()["pid"] == daemon.pid
    with pytest.raises(ConfigError, match=r"admin_group = .*: its members must also be in"):
        Config(admin_group=grp.getgrgid(ADMINS).gr_name).check()
    with pytest.raises(ConfigError, match="no such group"):
        Config(group=GROUP, admin_group="nobody-has-this-name").check()


LOCK = """
import fcntl, os, sys, time
for path in sys.argv[1:]:
    try:
        fcntl.flock(os.open(path, os.O_RDONLY | os.O_NONBLOCK), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (PermissionError, BlockingIOError):
        pass
print("done", flush=True)
time.sleep(600)
"""


@as_root
def test_members_keep_no_daemon_from_starting(daemon: Daemon) -> None:
    daemon.start(group=GROUP)
    paths = [str(path) for path in [daemon.directory, *daemon.directory.iterdir()]]
    paths = [path for path in paths if not path.endswith(".sock")]
    daemon.kill()
    command = [*member(OTHER), sys.executable, "-c", LOCK, *paths]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as locker:
        try:
            assert locker.stdout is not None
            assert locker.stdout.readline() == b"done\n"
            daemon.start(group=GROUP)
            assert daemon.status()["pid"] == daemon.pid
        finally:
            locker.kill()


@as_root
@pytest.mark.parametrize("holder", ["a member", "its supervisor"])
def test_members_hide_no_wheel(daemon: Daemon, holder: str) -> None:
    """A start without a daemon.json looks for one that no supervisor has: a member's lock of it
    counts for nothing, that of a supervisor whose directory has gone does."""
    daemon.start(group=GROUP)
    prefix, wheel = daemon.facts()["segment_prefix"], str(daemon.segment_path("wheel"))
    with connect(str(daemon.directory)) as timers:
        timers.schedule(1000.0)
        who = member(OTHER) if holder == "a member" else []
        if who:
            daemon.kill()
        else:
            os.kill(daemon.pid, signal.SIGSTOP)
        shutil.rmtree(daemon.directory)
        command = [*who, sys.executable, "-c", LOCK, wheel]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as locker:
            try:
                assert locker.stdout is not None
                assert locker.stdout.readline() == b"done\n"
                if who:
                    assert takeover._stray(daemon.directory, daemon.name) == prefix
                else:
                    with pytest.raises(WheelError, match=f"pid {daemon.pid}. already runs and"):
                        takeover._stray(daemon.directory, daemon.name)
            finally:
                locker.kill()
        os.kill(daemon.pid, signal.SIGKILL) if not who else None
        daemon.wait()
        daemon.start(group=GROUP)
        assert daemon.status()["pending"] == 1


# -- names ------------------------------------------------------------


KEEP = {"worker": "mine", "on_death": "keep"}


def leave(daemon: Daemon, before: list[str], name: str = "mine") -> None:
    with Remote(daemon, before, **{**KEEP, "worker": name}) as worker:
        worker.ask("timers.schedule(1000.0, 7) > 0")
    until(lambda: daemon.workers()[name]["state"] == "kept", "kept")


@as_root
@pytest.mark.parametrize("deaths", ["none", "the supervisor", "the host"])
def test_what_is_kept_is_for_the_user_who_left_it(
    daemon: Daemon, tmp_path: Path, deaths: str
) -> None:
    options: dict[str, Any] = {"group": GROUP, "state_dir": tmp_path / "state", "payload_bytes": 8}
    daemon.start(**options)
    leave(daemon, member(OTHER))
    if deaths == "the supervisor":
        daemon.kill()
        daemon.start(**options)
    elif deaths == "the host":
        daemon.stop()
        daemon.start(**options)
    for before in (run_as_stranger(), []):
        with pytest.raises(RemoteError, match=rf"PermissionError.*'mine'.*uid {OTHER}"):
            Remote(daemon, before, **KEEP)
    with Remote(daemon, member(OTHER), **KEEP) as successor:
        assert successor.ask("[timers.adopted, timers.pending]") == [True, 1]


@as_root
def test_a_name_is_free_again(daemon: Daemon) -> None:
    daemon.start(group=GROUP, keep_for="10ms")
    with Remote(daemon, member(OTHER), **KEEP) as worker:
        worker.ask("timers.schedule(1000.0) > 0")
    until(lambda: daemon.workers() == {}, "gone")
    with Remote(daemon, run_as_stranger(), **KEEP) as other:
        assert other.ask("[timers.adopted, timers.pending]") == [False, 0]


@as_root
def test_a_forked_child_passes_over_what_is_anothers(daemon: Daemon) -> None:
    daemon.start(group=GROUP)
    leave(daemon, member(OTHER), "mine-1")
    with Remote(daemon, run_as_stranger(), **KEEP, after_fork="reconnect") as parent:
        parent.ask(FORK)
        assert parent.ask("child()") == ["mine-2", False]


FORK = """
def child():
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        timers.pending
        os.write(write, json.dumps([timers.worker, timers.adopted]).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    return json.loads(os.read(read, 1000))
"""


def test_snapshots_of_before(daemon: Daemon, tmp_path: Path) -> None:
    options: dict[str, Any] = {"state_dir": tmp_path / "state"}
    daemon.start(**options)
    leave(daemon, [])
    daemon.stop()
    path = next((tmp_path / "state").iterdir())
    assert read(path).uids == (os.getuid(),)
    may = Registry.check_successor
    for uid, asks in ((ANY_UID, 0), (ANY_UID, 7), (7, 7)):
        may(Tenant(0, 1, "mine", 1, uid=uid), asks)
    with pytest.raises(PermissionError):
        may(Tenant(0, 1, "mine", 1, uid=7), 0)


# -- words ------------------------------------------------------------

FORGED = ["a\nwheeld: worker root (pid 1) died", "a\r", "a\x1b[2J", "a\x7f", "a\u202eb", "\x85"]


@pytest.mark.parametrize("name", FORGED)
def test_names_that_forge_lines_of_the_log(daemon: Daemon, name: str) -> None:
    daemon.start()
    for option in ({"worker": name}, {"group": name}):
        with pytest.raises(ValueError, match="printable"):
            connect(str(daemon.directory), **option)  # type: ignore[arg-type]
    with connect(str(daemon.directory), worker="häuser 漢字 ✓", group="a b") as timers:
        assert timers.worker == "häuser 漢字 ✓"
    assert name not in daemon.said()


HELLO = """
import json, sys
from pathlib import Path
from wheeld_core.errors import WheelError
from wheeld_core import _native, control
layout = {"layout": _native.LAYOUT_VERSION, "fingerprint": _native.FINGERPRINT}
for name in json.loads(sys.argv[2]):
    for fields in ({"worker": name, "group": None}, {"worker": None, "group": name}):
        try:
            connection = control.Connection(Path(sys.argv[1]))
            connection.request("hello", on_death="drop", **layout, **fields)
            print("let in", ascii(name))
        except ValueError as error:
            assert "printable" in str(error)
print("done")
"""


@as_root
def test_members_forge_no_lines_of_the_log(daemon: Daemon) -> None:
    daemon.start(group=GROUP)
    command = [*member(OTHER), sys.executable, "-c", HELLO, str(daemon.directory)]
    done = subprocess.run(
        [*command, json.dumps(FORGED)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert all(name not in daemon.said() for name in FORGED)


def test_logs_escape_what_comes_from_others() -> None:
    record = logging.LogRecord("wheeld", logging.INFO, "", 0, "worker %s died", (FORGED[0],), None)
    assert logs.Formatter().format(record) == (
        "wheeld: worker a\\nwheeld: worker root (pid 1) died died"
    )
    try:
        raise ValueError("b\x1b[2J")
    except ValueError:
        record.exc_info = sys.exc_info()
    text = logs.Formatter().format(record)
    assert text.splitlines()[1:] == [*text.splitlines()[1:-1], "ValueError: b\\x1b[2J"]
    assert len(text.splitlines()) > 3
