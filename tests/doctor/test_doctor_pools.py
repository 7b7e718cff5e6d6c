"""doctor's checks of memory pools: over made-up figures, over memory, and over a running daemon."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_doctor import assert_bad, put
from test_doctor_live import findings

from common_fixtures import daemon_process
from daemons import Daemon
from fsck_wheels import FullWheel, Local
from remotes import Remote
from shared_words import Shared
from wheeld.config.settings import Config
from wheeld.doctor import (
    live as doctor_live,
    pools as checks,
    run as doctor,
)
from wheeld.doctor.pools import ObservedPool
from wheeld.resources import remains
from wheeld.tables import sharing
from wheeld_core import _native, segments

SECOND = 10**9
WELL = ObservedPool("p", 1000, 100, 60 * SECOND, 5.0, 0, (), {"a": 60, "b": 40})
OTHER = replace(WELL, name="other")

Check = Callable[[Sequence[ObservedPool]], Any]
ILL: list[tuple[Check, dict[str, Any], str, str]] = [
    (checks.depletion, {"depleted_percent": 50.0}, "warning", "p: 100 bytes of 1000 bytes out"),
    (checks.depletion, {"depleted_percent": 99.96}, "warning", "100.0 % of the time"),
    (checks.depletion, {"depleted_percent": 90.0}, "warning", "a larger --pool"),
    (checks.waits, {"waiters": ("a", "b"), "dry_ns": 5 * SECOND}, "warning", "a, b waited for 5 s"),
    (checks.waits, {"waiters": ("a",), "dry_ns": 77 * SECOND}, "warning", "do not give it back"),
    (checks.hogs, {"shares": {"a": 900, "b": 0}}, "note", "a has 90% of p"),
    (checks.hogs, {"shares": {"a": 1500, "b": 0}}, "note", "a has 150% of p"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changes", "status", "words"), ILL)
def test_what_is_ill_is_said(
    check: Check, changes: dict[str, Any], status: str, words: str
) -> None:
    pools = [OTHER, replace(WELL, **changes)]
    finding = check(pools)
    assert_bad(finding, status, words)
    assert "other" not in finding.found
    assert {other(pools).status for other in checks.CHECKS if other is not check} == {"ok"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"depleted_percent": 49.9},
        {"depleted_percent": 100.0, "age_ns": 9 * SECOND},  # it has just begun
        {"waiters": ("a",), "dry_ns": 4 * SECOND},
        {"dry_ns": 60 * SECOND},  # refused once, and nobody waits
        {"shares": {"a": 899, "b": 1}},
        {"shares": {"a": 1000}},  # the only one
    ],
)
def test_what_is_not_ill(changes: dict[str, Any]) -> None:
    assert {check([replace(WELL, **changes)]).status for check in checks.CHECKS} == {"ok"}
    assert {check([]).status for check in checks.CHECKS} == {"ok"}


def test_every_check_has_a_case() -> None:
    assert {check for check, *_ in ILL} == set(checks.CHECKS)


def test_what_is_observed_of_pools(tmp_path: Path) -> None:
    status = {"clock_pid": 7, "clock_trouble": None, "capacity": 1024}
    with FullWheel() as wheel:
        memories = Local(wheel).memories()
        assert memories is not None
        words, now = wheel.words, _native.read_clock()
        words.pools.pools["dry_since"][1] = now - 6 * SECOND
        words.pools.pools["dry_ns"][0] = 10**18  # long before there was time for it

        def sleep(seconds: float) -> None:
            assert int(words.pools.ledgers["ticket"][1, 1]) == 5

        first, second = doctor_live.gather(status, memories, "none-", tmp_path, sleep).pools
        assert (first.name, first.size, first.used, first.waiters) == ("requests", 65536, 450, ())
        assert first.shares == {"a (row 0, pid 0)": 250, "b (row 1, pid 0)": 200}
        assert first.depleted_percent > 100
        assert (second.size, second.used, second.waiters) == (1000, 1000, ("b (row 1, pid 0)",))
        assert second.dry_ns >= 6 * SECOND
        assert first.dry_ns == 0
        assert checks.waits([second]).status == "warning"

        def move_on(seconds: float) -> None:
            words.pools.pools["tickets"][1] = 6
            words.pools.ledgers["ticket"][1, 1] = 6

        second = doctor_live.gather(status, memories, "none-", tmp_path, move_on).pools[1]
        assert second.waiters == ()


# -- the command -----------------------------------------------------------------------------------

NAMES = {"pool depletion", "pool waits", "pool shares"}


daemon = daemon_process(started=False)


def test_doctor_of_pools(daemon: Daemon) -> None:
    daemon.start("--pool", "p=1000")
    where = ("--name", daemon.name, "--runtime-dir", str(daemon.base))
    with Remote(daemon, worker="a"), Remote(daemon, worker="b"):
        _, found = findings(*where)
        assert {name: found[name]["status"] for name in NAMES} == dict.fromkeys(NAMES, "ok")
        words = Shared.of(daemon)
        words.change(0, 950)
        words.pools.pools["created"][0] -= 100 * SECOND
        words.pools.pools["dry_since"][0] = _native.read_clock() - 90 * SECOND
        words.wait_in_queue(1, 1)
        _, found = findings(*where)
        assert "p: 950 bytes of 1000 bytes out" in found["pool depletion"]["found"]
        assert "b (row 1, pid" in found["pool waits"]["found"]
        assert "95% of p" in found["pool shares"]["found"]
        assert {found[name]["status"] for name in NAMES} == {"warning", "note"}


def test_doctor_without_pools(daemon: Daemon) -> None:
    daemon.start()
    _, found = findings("--name", daemon.name, "--runtime-dir", str(daemon.base))
    assert not NAMES & set(found)


def test_room_for_the_two_segments(tmp_path: Path) -> None:
    config = Config(capacity=64, max_workers=4094, pools=("p=1M",)).check()
    sizes = sharing.sizes(4094, 64, 1)
    assert sizes["watch"] > 60 << 20
    host = doctor.Host(tmp_path, Path("/dev/shm"))
    room = next(iter(doctor.preflight(config, host, tmp_path / "proc/self")))
    sizes |= _native.geometry(**config.native())
    sizes["keys"] = _native.keys_bytes(4094, config.all_slots)[1]
    names = ("watch", "keys", "pools", "wheel_bytes", "heap_off", "registry_bytes")
    heap = config.first_chunks * _native.CHUNK_BYTES
    total = (heap + sum(sizes[name] for name in names)) / (1 << 20)
    assert f"{total:,.1f} MiB" in f"{room.found} {room.expected}"


@pytest.mark.parametrize(
    ("options", "lower"),
    [
        ({"capacity": 64, "max_workers": 4094}, "max_workers"),
        ({"capacity": 1 << 20, "max_workers": 64}, "capacity"),
        ({"capacity": 64, "trace": "t", "trace_ring": 1 << 20}, "trace_ring"),
    ],
)
def test_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], lower: str
) -> None:
    full = SimpleNamespace(f_blocks=1, f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(doctor.os, "statvfs", lambda path: full)
    host = doctor.Host(tmp_path, Path("/dev/shm"))
    room = next(iter(doctor.preflight(Config(**options), host, tmp_path / "proc/self")))
    assert f"lower {lower}, or enlarge" in room.advice


@pytest.mark.parametrize(
    ("kind", "lower"), [("watch", "max-workers"), ("slots", "capacity"), ("worker-3", "capacity")]
)
def test_what_a_start_without_room_says(
    monkeypatch: pytest.MonkeyPatch, daemon_name: str, kind: str, lower: str
) -> None:
    def refuse(fd: int, begin: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segments.os, "posix_fallocate", refuse)
    with pytest.raises(segments.SegmentError, match=f"lower --{lower} or enlarge"):
        segments.create(f"wheeld-{daemon_name}-0123456789ab-{kind}", 4096)


@pytest.mark.parametrize("kind", ["watch", "pools"])
def test_left_segments(tmp_path: Path, kind: str) -> None:
    put(tmp_path / f"wheeld-shop-0123456789ab-{kind}", "")
    (group,) = remains.groups(tmp_path, os.getuid())
    assert (group.name, group.kinds) == ("shop", [kind])
