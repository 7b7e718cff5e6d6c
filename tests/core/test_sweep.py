"""Sweeps of tests/c/sweep in a short form: some programs, and only some of their instructions.

`make sweep` takes all of them, for as long as it is given, and .ci/run each path of each. A core
broken in one place shows that a sweep can fail; `make mutants` has more of these.
"""

import shutil
from pathlib import Path

import pytest

from proofs import sanitize, sweep
from seeds import SEED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"),
]


@pytest.mark.parametrize(
    ("program", "stride"), [("kill_pool", 12), ("pause_pool", 6), ("corrupt_sharing", 1)]
)
def test_program(program: str, stride: int) -> None:
    tally = sweep.sweep([program], seed=SEED % 2**31, stride=stride, quiet=True)[program]
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.stops > 100


def test_a_change_of_a_pool_that_is_not_noted(tmp_path: Path) -> None:
    include = tmp_path / "include"
    shutil.copytree(sanitize.INCLUDE, include)
    header = include / "wheeld" / "sharing" / "pool.h"
    whole, line = header.read_text(), "        wh_budget_note(b, word);\n"
    assert whole.count(line) == 1
    header.write_text(whole.replace(line, ""))
    found = sweep.sweep(
        ["kill_pool"], seed=1, rounds=4, only=["note-allocate"], quiet=True, include=include
    )
    tally = found["kill_pool"]
    assert tally.failures, f"no stop of {tally.stops} showed it"
    assert "FAIL kill_pool --path note-allocate " in tally.failures[0]
