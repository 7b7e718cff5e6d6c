"""Messages as JSON and in the journal; how many of them; what the processes are called."""

from __future__ import annotations

import array
import json
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from commands import badly, well, wheeld_command
from common_fixtures import daemon_process
from daemons import LONG, Daemon, until
from wheeld.processes import child_main, journal
from wheeld.processes.titles import title
from wheeld.supervisor import logs
from wheeld_client import connect

daemon = daemon_process(forked=False, log_format="json")
quiet = daemon_process(log_level="error")

IN_JOURNAL = (
    "from wheeld.processes import journal; journal.JournalHandler.__init__.__defaults__ = ({!r},);"
    "from wheeld.__main__ import main; main()"
)


def test_each_line_is_an_object(daemon: Daemon) -> None:
    """With time, level, the daemon's name and its pid, and the worker that it is about; the program
    that follows writes the same."""
    with connect(str(daemon.directory), worker="w\u00e9b"):
        pass
    assert wheeld_command("restart", *daemon.where).returncode == 0
    well("stop", *daemon.where)
    assert daemon.end() == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in daemon.said().splitlines()]
    assert {line["daemon"] for line in lines} == {daemon.name}
    assert {line["pid"] for line in lines} == {daemon.pid}
    assert {line["level"] for line in lines} == {"info"}
    about = [line for line in lines if "worker" in line]
    assert {line["worker"] for line in about} == {"w\u00e9b"}
    assert about == [line for line in lines if line["message"].startswith("worker ")]
    assert sum("took over" in line["message"] for line in lines) == 1
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)


def test_the_worker_is_no_part_of_the_text() -> None:
    formatter = logs.JsonFormatter("shop")
    said: Any
    for said in ("gone", "worker %s", ValueError("worker %s"), None):
        plain = logging.makeLogRecord({"msg": said, "levelname": "INFO"})
        assert "worker" not in json.loads(formatter.format(plain))
        told = logging.makeLogRecord({"msg": said, "levelname": "INFO", "worker": "web"})
        assert json.loads(formatter.format(told))["worker"] == "web"


def test_what_is_no_format() -> None:
    assert "log_format = 'xml': expected 'text' or 'json'" in badly(
        "start", "--log-format", "xml", code=2
    )
    assert "--log-level: log_level = 'loud'" in badly("start", "--log-level", "loud", code=2)


def test_the_level_is_an_option_as_others(quiet: Daemon, tmp_path: Path) -> None:
    assert quiet.said() == ""
    quiet.stop()
    config = tmp_path / "wheeld.toml"
    config.write_text('log_level = "error"\nlog_format = "json"\n')
    del quiet.options["log_level"]
    quiet.start("--config", str(config))
    with connect(str(quiet.directory), worker="silent"):
        pass
    config.write_text('log_level = "info"\nlog_format = "json"\n')
    os.kill(quiet.pid, signal.SIGHUP)
    until(lambda: quiet.status()["config"]["log_level"] == "info", "the other level")
    with connect(str(quiet.directory), worker="loud"):
        pass
    until(lambda: "loud" in quiet.said(), "a message")
    assert "silent" not in quiet.said()
    quiet.stop()


# -- the journal -----------------------------------------------------------------------------------


@pytest.fixture
def listening(runtime_dir: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(runtime_dir / "journal"))
        listening.settimeout(LONG)
        yield listening


def received(listening: socket.socket) -> dict[str, str]:
    content, ancillary, *_ = listening.recvmsg(1 << 20, 1024)
    for _, _, data in ancillary:
        (file,) = array.array("i", data)
        content = os.pread(file, 1 << 24, 0)
        os.close(file)
    found = {}
    while content:
        line, _, content = content.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack("<Q", content[:8])
            value, content = content[8 : 8 + size], content[9 + size :]
        found[name.decode()] = value.decode()
    return found


def test_entries_of_a_daemon(listening: socket.socket, runtime_dir: Path, daemon_name: str) -> None:
    path = runtime_dir / "journal"
    with Daemon(runtime_dir, daemon_name, log_format="journald") as daemon:
        said = daemon.refused(log_format="journald")
        assert "no journal at /run/systemd/journal/socket" in said or os.path.exists(journal.SOCKET)
        daemon.program = [sys.executable, "-c", IN_JOURNAL.format(str(path))]
        daemon.start()
        with connect(str(daemon.directory), worker="web-1"):
            pass
        where = ("--name", daemon_name, "--runtime-dir", str(runtime_dir))
        assert wheeld_command("restart", *where).returncode == 0
        daemon.stop()
        assert daemon.said() == said
    listening.setblocking(False)
    found = []
    while True:
        try:
            found.append(received(listening))
        except BlockingIOError:
            break
    assert {each["WHEELD_DAEMON"] for each in found} == {daemon_name}
    assert {each["SYSLOG_IDENTIFIER"] for each in found} == {"wheeld"}
    assert {each["PRIORITY"] for each in found} == {"6"}
    about = [each for each in found if each.get("WHEELD_WORKER") == "web-1"]
    assert about
    assert all(each["MESSAGE"].startswith("worker web-1") for each in about)
    assert sum("took over" in each["MESSAGE"] for each in found) == 1


def test_what_the_clock_and_the_recorder_say(
    listening: socket.socket,
    runtime_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(journal.say, "__defaults__", (runtime_dir / "journal",))
    for form in ("journald", "json", "text"):
        monkeypatch.setattr(child_main, "_introduction", {"name": "shop", "log_format": form})
        child_main.say("two\nlines")
    found = received(listening)
    assert (found["WHEELD_DAEMON"], found["MESSAGE"]) == ("shop", "two\nlines")
    assert (found["PRIORITY"], found["SYSLOG_PID"]) == ("4", str(os.getpid()))
    json_line, text = capfd.readouterr().err.split("\n", 1)
    assert (json.loads(json_line)["daemon"], text) == ("shop", "wheeld: two\nlines\n")


def test_entries_that_are_long_or_find_no_room(listening: socket.socket, runtime_dir: Path) -> None:
    handler = journal.JournalHandler("shop", runtime_dir / "journal")
    log = logging.getLogger("test_log_format")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    try:
        raise ValueError("why\nnot")
    except ValueError:
        log.exception("one\ntwo")
    found = received(listening)
    assert found["MESSAGE"].startswith("one\ntwo\nTraceback")
    assert found["PRIORITY"] == "3"
    log.warning("x" * 1_000_000)
    assert received(listening)["MESSAGE"] == "x" * 1_000_000
    sent = 1000
    for number in range(sent):
        log.info("%d", number)
    kept = []
    listening.setblocking(False)
    while True:
        try:
            kept.append(received(listening)["MESSAGE"])
        except BlockingIOError:
            break
    assert kept == [str(number) for number in range(len(kept))]
    log.info("again")
    missing = received(listening)["MESSAGE"]
    assert missing.startswith(f"{sent - len(kept)} messages are missing here")
    assert received(listening)["MESSAGE"] == "again"
    log.removeHandler(handler)
    handler._socket.close()


# -- titles ----------------------------------------------------------------------------------------


def short_names(pids: list[str]) -> set[str]:
    return {Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}


def test_ps_shows_whose_processes_they_are(daemon: Daemon) -> None:
    pytest.importorskip("setproctitle")
    pid = daemon.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    shown = {which: Path(f"/proc/{which}/cmdline").read_bytes() for which in (str(pid), *children)}
    names = {title.split(b"\0")[0].decode() for title in shown.values()}
    assert names == {f"wheeld[{daemon.name}]: {part}" for part in ("supervisor", "clock")}
    for which in shown:
        assert b"WHEELD_TEST_OWNER=" in Path(f"/proc/{which}/environ").read_bytes()
    assert "wheeld-clock" in short_names(children)
    assert wheeld_command("restart", *daemon.where).returncode == 0
    assert b"]: supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_titles_fit() -> None:
    assert title("shop", "clock", 40) == "wheeld[shop]: clock"
    assert title("shop" * 10, "clock", 40) == f"wheeld[{('shop' * 10)[:24]}+]: clock"
    assert len(title("shop" * 10, "clock", 40)) == 40
