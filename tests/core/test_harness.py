"""The C harness: the lock-free core between threads, without Python; see tests/c/harness/harness.h.

Small counts here; `make sanitize` runs more of the same, and `tools/sanitize.py --plain` millions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import sanitize
from seeds import SEED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"),
]


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Builds a program, once."""
    directory = tmp_path_factory.mktemp("harness")
    built: dict[tuple[str, str], Path] = {}

    def build(program: str, kind: str) -> Path:
        if (program, kind) not in built:
            built[program, kind] = sanitize.build(program, kind, directory)
        return built[program, kind]

    return build


@pytest.mark.parametrize("kind", list(sanitize.KINDS))
@pytest.mark.parametrize("program", sanitize.PROGRAMS)
def test_program(program: str, kind: str, binary: Callable[[str, str], Path]) -> None:
    """Every account balances, nothing hangs, no sanitizer has a word to say."""
    outcome = sanitize.run(binary(program, kind), scale=1, seed=SEED)
    assert outcome.passed, outcome.output[-4000:]
