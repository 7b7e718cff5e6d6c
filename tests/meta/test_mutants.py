"""The list of proofs/mutants.py: each mutation still applies, and the fastest are caught.

All of them: `make mutants`.
"""

from collections import Counter

import pytest

from proofs import mutants, sanitize

MUTATIONS = mutants.load()
FAST = ("recovery-not-awake", "due-rounds-down", "positions-unmasked")
needs_compiler = pytest.mark.skipif(
    sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"
)


FOLDERS = {"harness": "tests/c/harness/{}.c", "sweep": "tests/c/sweep/{}.c", "pytest": "{}"}


def test_each_applies() -> None:
    for mutation in MUTATIONS:
        lapse = f"{mutation.name}: {mutation.file} has changed: {mutation.old!r}"
        assert mutation.places(mutants.ROOT) == 1, lapse
        assert mutation.old != mutation.new, mutation.name
        kind, program, *_ = mutation.by.split()
        file = mutants.ROOT / FOLDERS[kind].format(program.split("::")[0])
        assert file.exists(), mutation.name


def test_names_are_unique() -> None:
    count = Counter(mutation.name for mutation in MUTATIONS)
    assert max(count.values()) == 1, count.most_common(1)
    assert len(count) >= 30


@needs_compiler
@pytest.mark.parametrize("name", FAST)
def test_it_is_caught(name: str) -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)
    assert mutants.try_test(mutation.by, None).word == "passed"
    verdict = mutants.try_test(mutation.by, mutation)
    assert verdict.word == "caught", verdict
    assert verdict.report
