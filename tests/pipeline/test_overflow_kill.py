"""Each thing that runs an overflow in Spark is killed once: none lost, none doubled, none early.

In one of two kinds of Spark, as the seed says; .github/workflows/nightly.yml has both for longer.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proofs.torture.overflow.spark import run

pytestmark = pytest.mark.timeout(900)


@pytest.mark.usefixtures("java")
def test_kills(tmp_path: Path, rng_seed: int) -> None:
    chance = random.Random(rng_seed)
    master, kinds = chance.choice(
        [
            ("local[2,8]", ["Python worker", "columns", "daemon", "redo", "snapshot", "JVM"]),
            ("local-cluster[1,2,1024]", ["executor", "Python worker", "driver"]),
        ]
    )
    ends = kinds[-1:]
    kinds = chance.sample(kinds[:-1], len(kinds) - 1) + ends
    found, trial = run(tmp_path, master, kinds, chance)
    assert not any(found.values()), found
    assert sorted(trial.kills.elements()) == sorted(kinds)
