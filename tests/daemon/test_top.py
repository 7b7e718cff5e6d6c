"""`wheeld top`: what it says happened between two looks, and its screen, also in a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from commands import LONG, badly, well
from common_fixtures import embedded
from daemons import status_of
from wheeld.cli.top import SORTS, number, ordered, screen
from wheeld.metrics.activity import compare
from wheeld_client import connect

daemon = embedded(virtual_clock=True, capacity=1 << 15, pools=["requests=1M"])
WIDTH = 80


def drawn(found: dict[str, Any], **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, force_terminal=True, color_system=None)
    console.print(screen(found, options.pop("sort", "fired"), **options))
    return out.getvalue()


def test_what_happened_between_two_looks(daemon: Any) -> None:
    with connect(daemon, worker="a", group="g") as a, connect(daemon, worker="b", group="g") as b:
        b.schedule_many([0.5] * 7)
        daemon.advance(1.0)
        first = status_of(daemon)
        ids = a.schedule_many([0.5] * 20)
        a.cancel_many(ids[:6])
        a.schedule(100.0)
        daemon.advance(1.0)
        assert len(a.poll(LONG)) == 14
        found = compare(first, status_of(daemon), 2.0)
        workers = {worker["name"]: worker for worker in found["workers"]}
        assert workers["a"]["per_second"] == {
            "scheduled": 10.5, "cancelled": 3, "rescheduled": 0, "fired": 7, "received": 7,
        }  # fmt: skip
        assert workers["b"]["per_second"]["fired"] == 0
        assert (workers["b"]["unread"], workers["b"]["ring_full"]) == (7, False)
        assert (found["per_second"]["fired"], found["per_second"]["scheduled"]) == (7, 10.5)
        assert found["lateness_ns"]["count"] == workers["a"]["lateness_ns"]["count"] == 14
        assert found["lateness_ns_since_start"]["count"] >= 21
        assert found["groups"] == [{"name": "g", "members": 2, "pending": 1, "fired": 7.0}]


def test_a_full_ring_is_named(daemon: Any) -> None:
    with connect(daemon, worker="sleepy") as timers:
        first = status_of(daemon)
        ring = first["workers"][0]["ring"]
        timers.schedule_many([0.1] * (ring + 50))
        daemon.advance(1.0)
        found = compare(first, status_of(daemon), 1.0)
        assert found["rings_full"] == ["sleepy"]
        text = drawn(found)
        assert re.search(r"full rings +sleepy", text)
        assert "FULL" in text
        while len(timers.poll(0)):
            pass
        now = status_of(daemon)
        assert compare(now, now, 1.0)["rings_full"] == []


def test_another_wheel_has_no_rates(daemon: Any) -> None:
    now = status_of(daemon)
    other = {**now, "segments": {"wheel": "another"}}
    other["counters"] = dict.fromkeys(now["counters"], 0)
    assert set(compare(other, now, 1.0)["per_second"].values()) == {0.0}


def worker(name: str, **figures: Any) -> dict[str, Any]:
    rates = {key: figures.pop(key, 0.0) for key in ("scheduled", "cancelled", "fired")}
    late = {"count": 1, "p50": 1, "p99": figures.pop("late", 0), "p999": 1, "max": 1}
    return {
        "row": 0, "name": name, "pid": 4194304, "state": "active", "groups": [], "pending": 0,
        "per_second": rates, "lateness_ns": late, "ring_share": 0.0, "ring_full": False, **figures,
    }  # fmt: skip


def test_sorting() -> None:
    least, most = worker("z"), worker("a", pending=1, ring_share=1, scheduled=1, fired=1, late=1)
    for key in SORTS:
        assert ordered([least, most], key) == [most, least], key
    assert ordered([worker("y", pending=2), worker("x", pending=2)], "pending")[0]["name"] == "x"


def test_eighty_columns_hold_it(daemon: Any) -> None:
    now = status_of(daemon)
    found = compare(now, now, 1.0)
    huge = {"pending": 10**9, "scheduled": 123456789.0, "fired": 99999.9, "late": 10**12}
    found["workers"] = [
        worker("w" * 60, groups=["g" * 30], ring_full=True, **huge),
        worker("\x1b[2Jevil"),
        *(worker(f"worker-{i}") for i in range(40)),
    ]
    found["rings_full"] = ["w" * 60] * 9
    lines = drawn(found, height=24, keys=True).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 24
    assert "more workers" in "\n".join(lines)
    whole = drawn(found)
    assert "\x1b[2J" not in whole
    assert "worker-39" in whole
    assert all(f"{title}" in whole for title in ("PENDING", "SCHED/s", "FIRED/s*", "P99 LATE"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7.5, "7.5"), (9999, "9,999"), (12345, "12.3k"), (1.5e6, "1.5M"), (2e12, "2000G")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_once(daemon: Any) -> None:
    where = ("--name", str(daemon), "--interval", "10ms")
    with connect(daemon, worker="web-1"):
        text = well("top", "--once", *where)
        assert "web-1" in text
        assert "requests" in text
        found = json.loads(well("top", "--json", *where, "--sort", "late"))
        assert [worker["name"] for worker in found["workers"]] == ["web-1"]
    assert "expected one of name, pending" in badly("top", "--sort", "color", *where, code=2)
    assert "expected 10ms to 1h" in badly("top", *where[:2], "--interval", "1ms", code=2)


def test_in_a_terminal(daemon: Any) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "wheeld", "top", "--name", str(daemon), "--interval", "50ms"]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, env={**os.environ, "TERM": "xterm"}
    )
    try:
        os.close(slave)
        read_until(master, "FIRED/s*")
        os.write(master, b"p")
        read_until(master, "PENDING*")
        os.write(master, b"q")
        read_until(master, "\x1b[?1049l")
        assert process.wait(LONG) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(fd: int, text: str) -> None:
    seen, give_up = "", time.monotonic() + LONG
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    while text not in seen:
        assert waiting.poll(1000 * max(0.0, give_up - time.monotonic())), seen
        seen += os.read(fd, 1 << 16).decode(errors="replace")
