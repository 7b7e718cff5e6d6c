"""Every block and every command that a page shows is run, or at least understood."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from wheeld.cli import app as cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_BY = {
    "python": "tests/meta/test_docs.py",
    "python spark": "tests/pipeline/test_pipeline_docs.py",
    "python trace": "tests/pipeline/test_pipeline_docs.py",
    "python kafka": "tests/pipeline/test_kafka.py",
    "c": "tests/clients/test_c_client.py",
    "console": "tests/meta/test_tutorial.py",
    "text": "tests/meta/test_docs.py",
}
"""Which test runs the blocks of a language, on whatever page they are."""
PY_RUN_BY = {
    "README.md": "tests/integrations/test_page.py",
    "celery.md": "tests/integrations/test_page.py",
    "frameworks.md": "tests/integrations/test_page.py",
    "testing.md": "tests/testing/test_plugin.py",
    "tutorial.md": "tests/meta/test_tutorial.py",
}
"""The same for `py`, whose blocks need more around them: by page."""
ONE_PAGE = {"python kafka": "kafka.md", "c": "other-languages.md", "console": "tutorial.md"}
ONE_PAGE |= {"text": "broker.md", "python trace": "trace.md"}


def test_each_block_is_run_by_a_test() -> None:
    for page in PAGES:
        for language in re.findall(r"^ *```(.+)$", page.read_text(), re.M):
            test = PY_RUN_BY.get(page.name) if language == "py" else RUN_BY.get(language)
            assert test, f"{page.name} has a block of {language!r} that no test runs"
            assert (ROOT / test).is_file(), test
            assert ONE_PAGE.get(language, page.name) == page.name


def _commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = re.sub(r"^( *)```.*?```", "", page.read_text(), flags=re.S | re.M)
        text = text.replace("\\\n", " ")
        for line in re.findall(r"^ {4}((?:\w+=\S+ )*(?:wheeld|python -m|make) .*)$", text, re.M):
            if not re.search(r"\.\.\. *$| \[|^wheeld \*", line):
                found.append((page.name, line.split(" && ")[0].split(" || ")[0]))
    return found


COMMANDS = _commands()


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{p}-{w}" for p, w in COMMANDS])
def test_each_command_is_understood(page: str, line: str) -> None:
    line = line.replace("$timer", "7")
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
    words = words[:-1] if words[-1] == "&" else words
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), words
    elif words[0] == "python":
        assert importlib.util.find_spec(words[2]), words
    else:
        understand(words[1:])


def understand(words: list[str]) -> None:
    command = get_command(cli.app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context(command.name, words)
    except Exception as error:  # a class that Typer keeps to itself
        raise AssertionError(f"{words}: {error}") from error
