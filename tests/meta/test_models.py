"""The models name real places and have mutants; two of them hold, and fail when mutated.

`make verify` searches all of them, with every mutant: .ci/run has it beside the tests.
"""

import re
from pathlib import Path

import pytest

from proofs import verify

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"([\w/]+\.(?:h|c|py)):([A-Za-z_][\w.]*)")
CORE = ("core/include/wheeld", "core/wheeld_core/native")


def source_of(file: str) -> str:
    in_core = (path for folder in CORE for path in (ROOT / folder).rglob(file))
    return next(path for path in (ROOT / file, *in_core) if path.is_file()).read_text()


def defines(file: str, name: str) -> bool:
    text = source_of(file)
    if not file.endswith(".py"):
        return re.search(rf"^(?:static |wh_hot |#define )[^\n;]*\b{name}\(", text, re.M) is not None
    owner, _, method = name.rpartition(".")
    if owner:
        text = text.partition(f"\nclass {owner}")[2].partition("\nclass ")[0]
    return re.search(rf"^ *(?:async )?def {method}\(", text, re.M) is not None


def body(model: str) -> str:
    return (verify.MODELS / f"{model}.pml").read_text()


@pytest.mark.parametrize("model", verify.NAMES)
def test_models_name_real_places(model: str) -> None:
    places = PLACE.findall(body(model))
    assert len(places) > 10
    for file, name in places:
        assert defines(file, name), f"{model}.pml names {file}:{name}, which is not there"


@pytest.mark.parametrize("model", verify.NAMES)
def test_each_mutant_is_told_and_made(model: str) -> None:
    told = verify.mutants(model)
    assert list(told) == list(range(1, len(told) + 1))
    assert len(told) >= 3
    text = body(model)
    used = re.findall(r"MUTANT [!=]= (\d+)", text)
    assert {int(number) for number in used} == set(told)


def test_readme_lists_the_models() -> None:
    readme = (verify.MODELS / "README.md").read_text()
    assert set(re.findall(r"\((\w+)\.pml\)", readme)) == set(verify.NAMES)
    for file, name in PLACE.findall(readme):
        assert defines(file, name), f"models/README.md names {file}:{name}, which is not there"


@pytest.mark.skipif(verify.missing() is not None, reason=str(verify.missing()))
@pytest.mark.parametrize("model", ["heap", "words"])
def test_model_holds_and_a_mutant_fails(model: str, tmp_path: Path) -> None:
    outcomes = []
    for number, run in enumerate(verify.runs(model, quick=True)):
        (tmp_path / str(number)).mkdir()
        outcomes.append(verify.search(run, tmp_path / str(number)))
    assert [outcome.mutant for outcome in outcomes] == [0, 1]
    assert all(outcome.expected for outcome in outcomes), outcomes
    assert {outcome.result == "passes" for outcome in outcomes} == {True, False}
