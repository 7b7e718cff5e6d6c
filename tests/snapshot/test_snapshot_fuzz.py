"""Snapshots that are wrong under a right digest: refused with a message, or fit to be restored."""

import contextlib
import copy
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshots import snapshot_of, some_timers
from wheeld.snapshot.contents import Clocks, SnapshotError
from wheeld.snapshot.file import _PREFIX, FORMAT_VERSION, MAGIC, path_of, read, write
from wheeld.snapshot.restore import plan_restore
from wheeld_core.errors import WheelError

CLOCKS = Clocks(10, 20, 30, "a-boot")
ROUNDS = 600
STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1, 64, 2**31, 2**63 - 1, 2**63, 2**200, 1.5, 1e400, "", "x", "\0"),
    *("\udcff", "group:x", "x" * 300, [], ["w", "w"], [None], [[]], {}, {"w": 1}, [0] * 70),
]


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, bytes]:
    path = path_of(tmp_path, "web")
    timers = some_timers(70, payload_size=3, interval=5, deadline=40)
    write(path, snapshot_of(timers, CLOCKS, capacity=128, groups=("g",)))
    return path, path.read_bytes()[:-32]


def try_it(path: Path, header: bytes, body: bytes) -> bool:
    signed = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(header), len(body)) + header + body
    path.write_bytes(signed + hashlib.sha256(signed).digest())
    with contextlib.suppress(SnapshotError):
        snapshot = read(path)
        for restore in ("remaining", "wall"):
            for misfire in ("fire", "skip"):
                with contextlib.suppress(WheelError):
                    now = Clocks(50, 60, 70, "b", virtual=snapshot.clocks.virtual)
                    plan = plan_restore(snapshot, now, 1024, 8, restore, misfire)
                    assert len(plan.timers) <= 70
        return True
    return False


def places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


def strange_header(rng: random.Random, header: bytes, body: bytes) -> tuple[bytes, bytes]:
    found = json.loads(header)
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(places(found) or [([0], 0)])
        if rng.random() < 0.2:
            del container[key]
        else:
            container[key] = copy.deepcopy(rng.choice(STRANGE))  # one may be changed next
    return json.dumps(found).encode(), body


def strange_text(rng: random.Random, header: bytes, body: bytes) -> tuple[bytes, bytes]:
    text = bytearray(header)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 3)] = rng.choice([b"", b"[", b"9", b'"', b"\xff", b"null"])
    return bytes(text), body


def strange_body(rng: random.Random, header: bytes, body: bytes) -> tuple[bytes, bytes]:
    changed = bytearray(body)
    for _ in range(rng.randint(1, 20)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    return header, bytes(changed)


@pytest.mark.parametrize("change", [strange_header, strange_text, strange_body])
def test_each_is_refused_or_restored(
    whole: tuple[Path, bytes],
    rng_seed: int,
    change: Callable[[random.Random, bytes, bytes], tuple[bytes, bytes]],
) -> None:
    path, content = whole
    length = _PREFIX.unpack_from(content)[2]
    header, body = content[_PREFIX.size :][:length], content[_PREFIX.size + length :]
    assert try_it(path, header, body)
    rng = random.Random(rng_seed)
    refused = 0
    for _ in range(ROUNDS):
        refused += not try_it(path, *change(rng, header, body))
    assert refused > ROUNDS / 10


def test_deep_nesting(whole: tuple[Path, bytes]) -> None:
    path, _ = whole
    assert not try_it(path, b"[" * 100_000, b"")


@pytest.mark.parametrize("header", [b"[]", b"7", b"null", b'"x"', b"{}"])
def test_no_header_at_all(whole: tuple[Path, bytes], header: bytes) -> None:
    path, _ = whole
    assert not try_it(path, header, b"")
