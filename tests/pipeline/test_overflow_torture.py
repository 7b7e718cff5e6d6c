"""The overflow under kills, without Spark; and its account, which finds each kind of offence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from programs import of_checkout
from proofs.torture.overflow.account import Command, offences

ROOT = Path(__file__).parents[2]


def test_kills_at_every_line(rng_seed: int) -> None:
    program = [sys.executable, "-m", "proofs.torture.overflow", "--kills", "25", "--json"]
    done = subprocess.run([*program, "--seed", str(rng_seed)], cwd=ROOT, env=of_checkout(),
                          capture_output=True, text=True, timeout=240, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert said["kills"] >= 25
    assert said["sink"] > 50
    assert said["with other contents"] > 0
    assert not any(said["offences"].values())


SENT: list[Command] = [
    ("schedule", "a", 1, 1_000_000, 7, b"x"),
    ("schedule", "b", 1, 2_000_000, 8, None),
    ("reschedule", "b", 2, 3_000_000, 0, None),
    ("schedule", "c", 1, 1_000_000, 9, b""),
    ("cancel", "c", 2, 0, 0, None),
    ("reschedule", "d", 1, 5_000_000, 0, None),
]
GOOD = [("a", 1, 1_000_000, 1_000_500, 7, b"x"), ("b", 2, 3_000_000, 3_000_000, 8, None)]
REFUSED = [("nothing is pending under this key", "reschedule", "d", 1)]


def account(base: Path, expired: list[Any], rejected: list[Any]) -> dict[str, int]:
    instant = pa.timestamp("us", "UTC")
    kinds = [pa.string(), pa.int64(), instant, instant, pa.int64(), pa.binary()]
    names = ["key", "generation", "deadline", "fired", "cookie", "payload"]
    _write(base / "expired/batch=1", expired, names, kinds)
    kinds = [pa.string(), pa.string(), pa.string(), pa.int64()]
    _write(base / "rejected/batch=1", rejected, ["reason", "op", "key", "sequence"], kinds)
    return {name: len(found) for name, found in offences(SENT, base).items() if found}


def _write(folder: Path, rows: list[Any], names: list[str], kinds: list[pa.DataType]) -> None:
    folder.mkdir(parents=True)
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    pq.write_table(pa.table(columns, names), folder / "shard-0.parquet")


@pytest.mark.parametrize(
    ("expired", "rejected", "found"),
    [
        (GOOD, REFUSED, {}),
        ([*GOOD, ("c", 1, 1_000_000, 1_000_001, 9, b"")], REFUSED, {}),  # before its cancel
        (GOOD[:1], REFUSED, {"lost": 1}),
        (GOOD, [], {"lost": 1}),
        ([*GOOD, GOOD[0]], REFUSED, {"twice": 1}),
        ([*GOOD, ("e", 1, 0, 0, 0, None)], REFUSED, {"strange": 1}),
        ([GOOD[1], ("a", 1, 1_000_000, 999_999, 7, b"x")], REFUSED, {"early": 1}),
        ([GOOD[1], ("a", 1, 1_000_000, 1_000_000, 7, b"y")], REFUSED, {"other": 1}),
        ([GOOD[1], ("a", 1, 1_000_001, 1_000_001, 7, b"x")], REFUSED, {"other": 1}),
        (GOOD, REFUSED * 2, {"rejected twice": 1}),
    ],
)
def test_the_account(
    tmp_path: Path, expired: list[Any], rejected: list[Any], found: dict[str, int]
) -> None:
    assert account(tmp_path, expired, rejected) == found
