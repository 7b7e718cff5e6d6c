"""The C harness: the lock-free core between threads, without Python; see tests/c/harness.

Small counts and no sanitizer: `make sanitize` has these, `proofs/sanitize.py --plain` millions.
"""

import pytest

from proofs import sanitize
from seeds import SEED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"),
]


@pytest.mark.parametrize("program", sanitize.PROGRAMS)
def test_program(program: str) -> None:
    outcome = sanitize.run(sanitize.build(program, "plain"), scale=1, seed=SEED)
    assert outcome.passed, outcome.output[-4000:]
