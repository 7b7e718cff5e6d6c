"""Timers from the shell: `wheeld schedule`, `cancel`, `reschedule`, `wait`, and `wheeld evict`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner

from children import receive
from commands import LONG, badly, well
from common_fixtures import embedded
from daemons import status_of, until
from wheeld.cli.app import app
from wheeld_client import Timers, connect, payload_of, pending_timers

daemon = embedded("function", virtual_clock=True, capacity=1024, payload_bytes=16, keep_for="1h")
few_rows = embedded("function", virtual_clock=True, max_workers=32)
KEEP = ("--keep",)


def shell(daemon: Any, command: str, *arguments: str) -> Any:
    return json.loads(well(command, *arguments, "--json", "--name", str(daemon)))


def received(timers: Timers, daemon: Any, seconds: float) -> list[Any]:
    daemon.advance(seconds)
    return list(timers.poll(0))


def test_a_timer_outlives_who_scheduled_it(daemon: Any) -> None:
    with connect(daemon, worker="m", group="mailers") as timers:
        timers.poll(0)
        options = ("--to", "group:mailers", "--cookie", "42", "--payload", "h\u00e9")
        made = shell(daemon, "schedule", "30s", *options)
        assert made["delay_s"] == 30
        assert received(timers, daemon, 29) == []
        (event,) = received(timers, daemon, 2)
        assert (event["timer_id"], event["cookie"]) == (made["timer_id"], 42)
        assert payload_of(event) == "h\u00e9".encode()
        assert "is not pending" in badly("cancel", str(made["timer_id"]), "--name", str(daemon))


def test_cancel_and_reschedule(daemon: Any) -> None:
    with connect(daemon, worker="c") as timers:
        first, second = (
            well("schedule", delay, "--to", "c", "--name", str(daemon)).strip()
            for delay in ("10", "20s")
        )
        assert shell(daemon, "cancel", first) == {"timer_id": int(first), "cancelled": True}
        assert shell(daemon, "reschedule", second, "40s")["delay_s"] == 40
        assert received(timers, daemon, 39) == []
        assert [event["timer_id"] for event in received(timers, daemon, 2)] == [int(second)]
        for command in (("cancel", first), ("reschedule", second, "1s")):
            assert "is not pending" in badly(*command, "--name", str(daemon))


def test_pause_and_resume(daemon: Any) -> None:
    with connect(daemon, worker="c") as timers:
        id = timers.schedule(10.0, key="job")
        assert shell(daemon, "pause", "--key", "job") == {"key": "job", "paused": True}
        assert received(timers, daemon, 20) == []
        assert shell(daemon, "resume", str(id)) == {"timer_id": id, "paused": False}
        assert received(timers, daemon, 9) == []
        assert shell(daemon, "pause", str(id)) == {"timer_id": id, "paused": True}
        assert shell(daemon, "resume", "--key", "job") == {"key": "job", "paused": False}
        assert [event["timer_id"] for event in received(timers, daemon, 2)] == [id]
        assert "is not pending" in badly("pause", str(id), "--name", str(daemon))


def test_timers_by_key(daemon: Any) -> None:
    where = ("--name", str(daemon))
    with connect(daemon, worker="c") as timers:
        made = shell(daemon, "schedule", "10s", "--to", "c", "--key", "job")
        assert made["key"] == "job"
        assert "has a pending timer" in badly("schedule", "1s", "--to", "c", "--key", "job", *where)
        kept = ("--key", "job", "--on-conflict", "keep")
        assert shell(daemon, "schedule", "1s", "--to", "c", *kept)["timer_id"] == made["timer_id"]
        assert shell(daemon, "reschedule", "20s", "--key", "job") == {"key": "job", "delay_s": 20}
        record = timers.find("job")
        assert record is not None
        assert (record.id, record.to, record.remaining) == (made["timer_id"], "c", 20.0)
        assert shell(daemon, "cancel", "--key", "job") == {"key": "job", "cancelled": True}
        assert timers.find("job") is None
        for command in (("cancel",), ("reschedule", "1s"), ("pause",), ("resume",)):
            assert "no pending timer has the key 'job'" in badly(*command, "--key", "job", *where)
            assert "either the ID" in badly(*command, *where, code=2)
        assert "ID 'x'" in badly("reschedule", "x", "1s", *where, code=2)
        assert "--on-conflict" in badly(
            "schedule", "1s", "--to", "c", "--on-conflict", "keep", *where, code=2
        )


def test_pending_timers_have_their_keys(daemon: Any) -> None:
    keys = ["job:1", "job:" + "x" * 500, ("job", 1, b"z"), 5, -(2**80), b"job"]
    with connect(daemon) as timers:
        ids = [timers.schedule(10.0, key=key) for key in keys]
        timers.schedule(10.0)
        found = pending_timers(daemon)
        assert found.keys == dict(zip(ids, keys, strict=True))
        assert len(found.timers) == len(keys) + 1
        listed = shell(daemon, "inspect", "--prefix", "job:")
        assert [timer["key"] for timer in listed] == keys[:2]
        assert [timer["id"] for timer in shell(daemon, "inspect", "--key", "job:1")] == ids[:1]
        assert {timer["key"] for timer in shell(daemon, "inspect")} >= {"('job', 1, b'z')", None}
        for prefix, some in (("job:", ids[:2]), (("job",), ids[2:3]), (5, ids[3:4]), ("no", [])):
            found = pending_timers(daemon, prefix=prefix)
            assert sorted(found.timers["timer_id"].tolist()) == sorted(some)


def test_delays_and_receivers(daemon: Any) -> None:
    where = ("--name", str(daemon))
    for delay, why in (("-1s", "expected a number"), ("soon", "'soon'"), ("nan", "a number")):
        said = badly("schedule", "--to", "r", *where, "--", delay, code=2)
        assert why in said, said
    assert CliRunner().invoke(app, ["schedule", "1s", *where]).exit_code == 2, "without --to"
    made = well("schedule", "30d", "--to", "r", *where).strip()
    well("reschedule", made, "48h", *where)
    kept = [shell(daemon, "schedule", "1s", "--to", "r", *more)["timer_id"] for more in ((), KEEP)]
    daemon.advance(2.0)
    daemon.advance(3601.0)
    with connect(daemon, worker="r") as timers:
        until(lambda: status_of(daemon)["pending"] == 1, "the one without --keep has gone")
        assert [event["timer_id"] for event in receive(timers, 1)] == kept[1:]
        assert [event["timer_id"] for event in received(timers, daemon, 48 * 3600)] == [int(made)]


SIXTY = """
import os, signal, sys
from wheeld.cli import shell
from wheeld_client import Timers
schedule = Timers.schedule

def stopped(timers, *arguments, **options):
    id = schedule(timers, *arguments, **options)
    os.kill(os.getpid(), signal.SIGSTOP)
    return id

def command(number):
    if number == 0:
        Timers.schedule = stopped
    shell.schedule("3s", to="group:n", cookie=number, name=sys.argv[1], as_json=True)

children = []
for number in range(60):
    pid = os.fork()
    if not pid:
        command(number)
        sys.exit(0)
    children.append(pid)
assert os.WIFSTOPPED(os.waitpid(children[0], os.WUNTRACED)[1])
print([pid for pid in children[1:] if os.waitpid(pid, 0)[1]], file=sys.stderr, flush=True)
sys.stdin.readline()
os.kill(children[0], signal.SIGCONT)
print(os.waitpid(children[0], 0)[1], file=sys.stderr)
"""


def test_sixty_at_once(few_rows: Any) -> None:
    """None waits for another, though one is stopped in the middle, and each arrives."""
    command = [sys.executable, "-c", SIXTY, str(few_rows)]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as running,
        connect(few_rows, group="n") as timers,
    ):
        assert running.stderr is not None
        assert running.stderr.readline() == "[]\n", "all others have ended"
        made, said = running.communicate("go on\n", timeout=LONG)
        assert said == "0\n"
        few_rows.advance(4.0)
        events = receive(timers, 60)
        assert sorted(events["cookie"].tolist()) == list(range(60))
        ids = {one["timer_id"] for one in map(json.loads, made.replace("}\n{", "}\0{").split("\0"))}
        assert set(events["timer_id"].tolist()) == ids
        assert len(timers.poll(0)) == 0


def test_wait(daemon: Any) -> None:
    command = [sys.executable, "-m", "wheeld", "wait", "5s", "--json", "--name", str(daemon)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: status_of(daemon)["pending"] == 1, "armed")
            daemon.advance(4.9)
            assert process.poll() is None
            assert status_of(daemon)["pending"] == 1
            daemon.advance(0.2)
            found = json.loads(process.communicate(timeout=LONG)[0])
        finally:
            process.kill()
    assert process.returncode == 0
    assert found["delay_s"] == 5
    assert found["late_ns"] >= 0
    assert "expected a number" in badly("wait", "a while", "--name", str(daemon), code=2)


WORKER = """
import sys
from wheeld_client import connect
with connect(sys.argv[1], worker=sys.argv[2], on_death="keep") as timers:
    timers.schedule(1000)
    print("ready", flush=True)
    timers.poll(None)
"""


@contextmanager
def worker(daemon: Any, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, str(daemon), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_evict(daemon: Any) -> None:
    with worker(daemon, "stuck") as process:
        found = shell(daemon, "evict", "stuck")
        assert found == {"worker": "stuck", "pid": process.pid, "killed": True, "kept": True}
        assert process.wait(LONG) == -9
    assert status_of(daemon)["pending"] == 1
    assert well("evict", "stuck", "--name", str(daemon)) == "dropped the timers that stuck left\n"
    assert status_of(daemon)["pending"] == 0
    assert "no worker 'stuck'; connected:" in badly("evict", "stuck", "--name", str(daemon))
