"""What a member of --group may ask of the daemon, and what is another member's."""

import grp
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common_fixtures import daemon_process
from daemons import Daemon, until
from remotes import Remote, RemoteError
from strangers import GROUP, OTHER, as_root, member, run_as_stranger
from wheeld.config.settings import Config, ConfigError
from wheeld.resources import takeover
from wheeld.snapshot.file import read
from wheeld.supervisor import logs
from wheeld.tables.registry import ANY_UID, Registry, Tenant
from wheeld_client import connect
from wheeld_core.errors import WheelError

ADMINS = 100


daemon = daemon_process(started=False, for_all=True)


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
        for command in (["stop"], ["advance", "1s"], ["evict", "somebody"]):
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
    with Remote(daemon, member(OTHER), **KEEP) as heir:
        assert heir.ask("[timers.adopted, timers.pending]") == [True, 1]


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
    may = Registry.check_heir
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
