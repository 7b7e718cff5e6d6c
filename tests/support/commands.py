"""The command `wheeld` for tests: run to its end, in this process unless it is a daemon's start."""

import os
import subprocess
import sys

from typer.testing import CliRunner

from wheeld.cli.app import app

LONG = 60.0


def wheeld_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    changed = {"COLUMNS": "200", **environment}
    if arguments[0] == "start":
        line = [sys.executable, "-m", "wheeld", *arguments]
        options = {"capture_output": True, "text": True, "timeout": LONG}
        return subprocess.run(line, env={**os.environ, **changed}, **options)  # type: ignore[call-overload, no-any-return]
    done = CliRunner().invoke(app, arguments, env=changed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def well(*arguments: str, **environment: str) -> str:
    done = wheeld_command(*arguments, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def badly(*arguments: str, code: int = 1) -> str:
    done = wheeld_command(*arguments)
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("wheeld: ")
    return done.stderr
