"""The C harness: the lock-free core between threads, without Python; see tests/c/harness/harness.h.

Small counts here; `make sanitize` runs more of the same, and `tools/sanitize.py --plain` millions.
"""

import pytest

import sanitize
from seeds import SEED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"),
]


@pytest.mark.parametrize("kind", list(sanitize.KINDS))
@pytest.mark.parametrize("program", sanitize.PROGRAMS)
def test_program(program: str, kind: str) -> None:
    """Every account balances, nothing hangs, no sanitizer has a word to say."""
    outcome = sanitize.run(sanitize.build(program, kind), scale=1, seed=SEED)
    assert outcome.passed, outcome.output[-4000:]
