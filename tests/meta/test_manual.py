"""The manual page and the completions are made from the commands, and work."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.markup import render
from typer.core import TyperGroup

from programs import ROOT, of_checkout
from wheeld.cli.app import app


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=of_checkout(), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("share")
    done = run(sys.executable, str(ROOT / "tools/manual.py"), str(directory), "1.2.3")
    assert (done.returncode, done.stderr) == (0, "")
    return directory


def test_each_help_has_an_example_and_is_shown_whole() -> None:
    groups = [typer.main.get_command(app)]
    commands = []
    for group in groups:
        assert isinstance(group, TyperGroup)
        for command in group.commands.values():
            (groups if isinstance(command, TyperGroup) else commands).append(command)
    assert len(commands) > 20
    for command in commands:
        assert "Example" in (command.help or ""), command.name
        texts = [command.help, *(getattr(each, "help", "") for each in command.params)]
        for text in filter(None, texts):
            assert render(text).plain == text, (command.name, text)


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")
def test_the_manual_page_is_well_formed(share: Path) -> None:
    page = str(share / "man/man1/wheeld.1")
    done = run("mandoc", "-T", "lint", "-W", "warning", page)
    assert (done.returncode, done.stdout) == (0, "")
    shown = run("mandoc", "-T", "utf8", page).stdout
    assert "install-service" in shown


def test_bash_completes_commands(tmp_path: Path, share: Path) -> None:
    program = tmp_path / "wheeld"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m wheeld "$@"\n')
    program.chmod(0o755)
    script = share / "bash-completion/completions/wheeld"
    words = "COMP_WORDS=(wheeld insta); COMP_CWORD=1"
    call = f"source {script}; {words}; _wheeld_completion {program}; echo ${{COMPREPLY[@]}}"
    done = run("bash", "-c", call)
    assert done.stdout.strip() == "install-service", done.stderr
