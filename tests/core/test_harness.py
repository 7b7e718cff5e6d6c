"""The C harness: the lock-free core between threads, without Python; see tests/c/harness/harness.h.

Small counts here; `make sanitize` runs more of the same, and `proofs/sanitize.py --plain` millions.
"""

import pytest

from proofs import sanitize
from seeds import SEED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"),
]


RUNS = [
    (program, kind)
    for program in sanitize.PROGRAMS
    for kind in sanitize.KINDS
    if kind != "thread" or sanitize.starts_threads(program)
]
"""In one thread there is no race that ThreadSanitizer could find; `make sanitize` runs it all the
same."""


@pytest.mark.parametrize(("program", "kind"), RUNS)
def test_program(program: str, kind: str) -> None:
    outcome = sanitize.run(sanitize.build(program, kind), scale=1, seed=SEED)
    assert outcome.passed, outcome.output[-4000:]


def test_threads_are_seen() -> None:
    threaded = [program for program, kind in RUNS if kind == "thread"]
    assert threaded == [
        "duel",
        "handoffs",
        "hostile",
        "keys",
        "payloads",
        "rings",
        "sharing",
        "trace",
        "wakes",
    ]
