"""Exit code 2: the command line is wrong, nothing was done; 1: it was carried out, and failed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from typer.testing import CliRunner

from commands import badly
from programs import of_checkout, start_program
from wheeld.cli import start as described
from wheeld.cli.app import app
from wheeld.config.options import Option
from wheeld.config.settings import OPTIONS, load
from wheeld.supervisor import launch


def each_command(group: Any, *words: str) -> list[tuple[str, ...]]:
    """The words of each command below that one, with itself."""
    below = getattr(group, "commands", {}).items()
    return [words, *(found for name, one in below for found in each_command(one, *words, name))]


COMMANDS = each_command(typer.main.get_command(app))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_option_that_no_command_has(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, [*words, "--nonsense"]).exit_code == 2


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "status --name a/../b --name a:b", "stop --name -", "list --json=1",
        "advance soon", "advance -- -1s", "advance 1s 2s", "wait 1e400s", "wait",
        "schedule 1s", "schedule 1x --to a", "schedule 1s --to a --cookie x", "cancel x",
        "cancel -- -1", "reschedule 1 x", "schedule 1s --to group:", f"schedule 1s --to {'x' * 64}",
        "schedule 1s --to group:=x", "schedule 1s --to (detached)",
        f"schedule 1s --to a --key {'x' * 1024}", f"cancel --key {'x' * 1024}",
        f"inspect --key {'x' * 1024}", f"inspect --prefix {'x' * 1024}",
        "inspect --json --format csv", "metrics --otlp http://", "metrics --otlp https:///x",
        "jobs run x --args x", "jobs run x --args {}", "jobs run x --args [NaN]",
        "jobs run x --args [1e999]", 'jobs run x --args ["\\ud800"]', "jobs run x --kw []",
        f"jobs run x --args {'[' * 100000}", f"jobs run x --args [{'1' * 5000}]",
        "install-service --name ..", f"install-service --name {'x' * 49}",
        "restart --timeout x", "health --window 2h",
        "health --max-lateness x", "health --name a:b",
        "top --interval 2h", "top --sort x", "metrics --listen x", "metrics --name a:b",
        "metrics --name a:b --otlp http://127.0.0.1:4318",
        "metrics --otlp x", "inspect --format x", "inspect --limit -- -1", "inspect --limit 1x",
        "inspect --due-after x", "install-service --name a:b", "demo --case x", "demo --rate nan",
        "demo --rate inf",
        "demo --requests 0", "demo --workers 65", "fsck --name a:b", "doctor --name a:b",
        "pipeline nonsense", "pipeline report . --from x", "pipeline report . --to x",
        "pipeline report . --engine x", "pipeline report . --out s3://x/y",
        "pipeline report . --engine local --master x", "pipeline report . --conf x",
        "pipeline compare a b --names a", "pipeline fit . hdfs://x", "pipeline replay",
        "pipeline replay . --speed 0", "pipeline replay . --workers 0",
        "pipeline generate w --rows x", "pipeline generate w --rows 0",
        "pipeline generate w --seed -1", "pipeline generate w --model m --rate 1",
        "pipeline generate w --timeout-ms x",
        "pipeline generate w --p50-ms 9 --p75-ms 8", "pipeline overflow-compact . --file-bytes x",
        "pipeline fit . m --master a --remote b",
    ],
)  # fmt: skip
def test_a_wrong_command_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2, done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line",
    [
        "schedule 1s --to ?", "schedule 1s --to group:?", "schedule 1s --to a --key ?",
        "schedule 1s --to a --payload ?", "cancel --key ?", "pause --key ?", "resume --key ?",
        "reschedule 1s --key ?", "inspect --key ?", "inspect --prefix ?", "status --name ?",
    ],
)  # fmt: skip
def test_bytes_that_are_no_text(line: str) -> None:
    """They are refused in words of this program, not of a codec."""
    words = [word.replace("?", os.fsdecode(b"a\xff")) for word in line.split()]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert "codec" not in done.output


@pytest.mark.parametrize(
    "line",
    [
        "--nonsense", "--capacity", "--capacity 0", "--capacity 1.5", "--capacity x",
        "--capacity=-1", "--max-workers 1M", "--tick soon", "--pool requests=64X", "--name a:b",
        "--group no-such-group", "--admin-group root", "--pin-cpu 99999", "--config nowhere.toml",
        "--metrics x", "--trace-bytes x", "--log-level x", "word", "--config /",
        "--runtime-dir=", "--state-dir=", "--trace=",
    ],
)  # fmt: skip
def test_a_wrong_start(line: str) -> None:
    done = CliRunner().invoke(app, ["start", *line.split()])
    assert done.exit_code == 2, done.output


def test_letters_that_the_terminal_has_not(tmp_path: Path) -> None:
    """A name of another alphabet is shown all the same."""
    (tmp_path / "caf\u00e9").mkdir()
    (tmp_path / "caf\u00e9" / "control.sock").touch()
    done = subprocess.run(
        [sys.executable, "-m", "wheeld", "list", "--runtime-dir", str(tmp_path)],
        env={**of_checkout(), "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\\xe9" in done.stdout


@pytest.mark.parametrize("words", [("list", "--json"), ("list",), ("--help",)])
def test_output_that_has_no_room(words: tuple[str, ...], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "wheeld", *words], stdout=full, stderr=subprocess.PIPE,
            env={**of_checkout(), "WHEELD_RUNTIME_DIR": str(tmp_path)}, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "wheeld: the output cannot be written: No space left on device\n"


def test_a_file_of_options_in_another_encoding(tmp_path: Path) -> None:
    file = tmp_path / "it.toml"
    file.write_bytes(b"\xff")
    done = CliRunner().invoke(app, ["start", "--config", str(file)])
    assert (done.exit_code, "codec" in done.output) == (2, False)


def test_what_is_right_and_fails(tmp_path: Path) -> None:
    badly("status", "--runtime-dir", str(tmp_path), code=1)
    badly("pipeline", "report", str(tmp_path / "nowhere"), code=1)


@pytest.mark.parametrize("unit", ["wheeld@.service", "wheeld-user@.service"])
def test_no_service_manager_tries_a_wrong_option_again(unit: str) -> None:
    text = Path(__file__).parents[2].joinpath("systemd", unit).read_text()
    assert "\nRestartPreventExitStatus=2\n" in text


@pytest.mark.parametrize(
    "given",
    ["1e6", "1_000_000", "1000000", 1e6, 10**6],
)
def test_counts_are_written_alike_everywhere(
    given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load({"capacity": given}).capacity == 10**6
    file = tmp_path / "it.toml"
    file.write_text(f"capacity = {given!r}".replace("'", '"'))
    assert load({}, file).capacity == 10**6
    monkeypatch.setenv("WHEELD_CAPACITY", str(given).removesuffix(".0"))
    assert load({}).capacity == 10**6


@pytest.mark.parametrize("given", ["64MB", "64M", "64MiB", "65536k", str(64 << 20)])
def test_sizes_are_written_alike_everywhere(given: str) -> None:
    (pool,) = load({"pools": [f"x={given}"], "trace_bytes": given}).memory_pools
    assert pool.size == 64 << 20
    assert load({"trace_bytes": 64 << 20}).trace_most_bytes == 64 << 20


@pytest.mark.parametrize(
    ("line", "lacking"),
    [("report /nowhere", "pandas"), ("report /nowhere", "jinja2"), ("compare /a /b", "pandas"),
     ("generate w", "pyspark"), ("generate w", "pyarrow"), ("fit /a m", "pyarrow"),
     ("replay /a", "pyarrow"), ("overflow --commands c --sink s --checkpoint k", "pyspark")],
)  # fmt: skip
def test_a_package_that_is_not_installed(line: str, lacking: str, tmp_path: Path) -> None:
    """It is named in one line, with what installs it, or not needed."""
    program = (
        f"import sys; sys.modules[{lacking!r}] = None\n"
        f"sys.argv = 'wheeld pipeline {line}'.split()\n"
        "from wheeld.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=of_checkout(), capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    if lacking in done.stderr:
        assert done.returncode == 1
        assert "pip install '.[" in done.stderr


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
    for words in ((on, text), (f"{on}={text}",)):
        assert read(*words)[option.key] == ([text] if option.kind == "pools" else text)
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
