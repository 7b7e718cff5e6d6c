"""Each thing that runs an overflow in Spark is killed once: none lost, none doubled, none early.

`python -m proofs.torture.overflow.spark` does the same for longer, and in a standalone cluster.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proofs.torture.overflow.spark import run

pytestmark = pytest.mark.timeout(900)


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("master", "kinds"),
    [
        ("local[2,8]", ["Python worker", "columns", "daemon", "redo", "snapshot", "JVM"]),
        ("local-cluster[1,2,1024]", ["executor", "Python worker", "driver"]),
    ],
)
def test_kills(tmp_path: Path, rng_seed: int, master: str, kinds: list[str]) -> None:
    chance = random.Random(rng_seed)
    ends = kinds[-1:]
    kinds = chance.sample(kinds[:-1], len(kinds) - 1) + ends
    found, trial = run(tmp_path, master, kinds, chance)
    assert not any(found.values()), found
    assert sorted(trial.kills.elements()) == sorted(kinds)
