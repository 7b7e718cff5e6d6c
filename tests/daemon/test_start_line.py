"""The command line of `wheeld start`: what is parsed is what --help describes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import typer

from programs import of_checkout, start_program
from wheeld.cli import start as described
from wheeld.config.options import Option
from wheeld.config.settings import OPTIONS
from wheeld.supervisor import launch

TEXTS = {"integer": "7", "pools": "requests=64M", "directory": "/tmp/some where"}
HIDDEN = {"--remove-base", "--check", "--parent-pid"}


def read(*words: str) -> dict[str, object]:
    return vars(launch.parser().parse_args(words))


def test_help_describes_what_is_parsed() -> None:
    group = typer.main.get_command(described.app)
    command = group.commands["start"]  # type: ignore[attr-defined]
    shown = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    parsed = {flag for each in launch.parser()._actions for flag in each.option_strings}
    assert shown - {*described.HELP} == parsed - HIDDEN


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.key)
def test_each_option(option: Option) -> None:
    on, _, off = option.flag.partition("/")
    assert read()[option.key] is None
    if option.kind == "switch":
        assert read(on)[option.key] is True
        assert not off or (read(on, off)[option.key], read(off, on)[option.key]) == (False, True)
        return
    text = TEXTS.get(option.kind, "some text")
    value = Path(text) if option.kind == "directory" else text
    for words in ((on, text), (f"{on}={text}",)):
        assert read(*words)[option.key] == ([value] if option.kind == "pools" else value)
    if option.bare:
        assert read(on)[option.key] == read(on, "--quiet")[option.key] == option.bare


def test_pools_add_up_and_of_others_the_last_one_counts() -> None:
    found = read("--pool", "a=1M", "--capacity", "5", "--pool", "b=2M", "--capacity=6")
    assert (found["pools"], found["capacity"]) == (["a=1M", "b=2M"], "6")


@pytest.mark.parametrize(
    "words",
    [["--nonsense", "1"], ["word"], ["--", "word"], ["--capacity"], ["--quiet=1"],
     ["--parent-pid", "x"], ["--name", "--quiet"], ["--capacit", "5"], ["--log_level", "info"]],
)  # fmt: skip
def test_mistakes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(*words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words[-1] in said or words[0].partition("=")[0] in said
    assert "wheeld start --help" in said


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
