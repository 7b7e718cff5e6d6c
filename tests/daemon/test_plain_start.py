"""`wheeld start` without the library that reads commands: the same values, or it is asked."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer

from programs import of_checkout, start_program
from wheeld.cli import plain_start, start as library
from wheeld.config.settings import OPTIONS

TEXTS = {"integer": "7", "pools": "requests=64M", "directory": "/tmp/some where", "switch": None}


def by_library(words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    command = typer.main.get_command(library.app)
    found: dict[str, Any] = {}
    monkeypatch.setattr(library, "launch", lambda given, *own, **more: found.update(given))
    start = command.commands["start"]  # type: ignore[attr-defined]
    with start.make_context("start", list(words)) as context:
        return dict(context.params)


def alike(words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    plain = plain_start.read(words)
    assert plain is not None, words
    theirs = by_library(words, monkeypatch)
    assert plain.keys() == theirs.keys()
    for key, value in theirs.items():
        got = value or None if key == "pools" else value
        assert (plain[key], type(plain[key])) == (got, type(got)), (key, words)
    return plain


def test_each_option_comes_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alike([], monkeypatch)["log_level"] is None
    for option in (*OPTIONS.values(), *plain_start.OWN):
        on, _, no = option.flag.partition("/")
        text = TEXTS.get(option.kind, "some text")
        words = [on] if text is None else [on, text]
        assert alike(words, monkeypatch)[option.key]
        if text is not None:
            assert alike([f"{on}={text}"], monkeypatch)[option.key]
            alike([*words, f"{on}={text}", "--fresh"], monkeypatch)
        if no:
            assert alike([no], monkeypatch)[option.key] is False
            assert alike([no, on], monkeypatch)[option.key] is True
        if option.bare:
            assert alike([on], monkeypatch)[option.key] == option.bare
            assert alike([on, "--quiet"], monkeypatch)[option.key] == option.bare


def test_pools_add_up_and_of_others_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--pool", "a=1M", "--capacity", "5", "--pool", "b=2M", "--capacity=6"]
    found = alike(words, monkeypatch)
    assert (found["pools"], found["capacity"]) == (["a=1M", "b=2M"], "6")


def test_it_takes_what_the_command_takes() -> None:
    taken = {*OPTIONS, *(option.key for option in plain_start.OWN)}
    assert inspect.signature(library.start).parameters.keys() == taken


@pytest.mark.parametrize(
    "words",
    [["--help"], ["-h"], ["--nonsense", "1"], ["word"], ["--"], ["--capacity"],
     ["--capacity", "-5"], ["--capacity="], ["--quiet=1"], ["--parent-pid", "x"],
     ["--name", "--quiet"],
     ["--capacit", "5"], ["--name", ""], ["--log_level", "info"]],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_library(words: list[str]) -> None:
    assert plain_start.read(words) is None


def test_an_error_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wheeld", "start", "--tick", "never"],
        env=of_checkout(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("wheeld: ")
    assert done.stderr.count("\n") == 1


def test_the_daemon_holds_none_of_the_library(daemon_name: str, runtime_dir: Path) -> None:
    words = ["-m", "wheeld", "start", "--name", daemon_name, "--runtime-dir", str(runtime_dir)]
    process = start_program(of_checkout(), *words)
    try:
        facts = runtime_dir / daemon_name / "daemon.json"
        for _ in itertools.takewhile(lambda _: not facts.exists(), itertools.count()):
            assert process.poll() is None
        mapped = {Path(each.path).name for each in psutil.Process(process.pid).memory_maps()}
        assert any(name.startswith("_native") for name in mapped)
        assert not any("pydantic" in name for name in mapped)
    finally:
        process.terminate()
        process.communicate()
