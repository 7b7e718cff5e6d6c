"""Other users for tests: programs that run as nobody."""

import contextlib
import grp
import os
import subprocess
import sys

import pytest

NOBODY = 65534
OTHER = 2
"""Another user, in that group as well."""

GROUP = grp.getgrgid(NOBODY).gr_name if os.getuid() == 0 else ""
"""nobody's, for --group."""

# A link to the interpreter may lead through a directory that the other user cannot enter.
AS_ITSELF = """
import os, subprocess, sys
if not os.access(sys.executable, os.X_OK):
    sys.executable = "/usr/bin/python3"
    os.environ["PYTHONPATH"] = ":".join(path for path in sys.path if path)
if sys.argv[1:] == ["try"]:
    sys.exit(subprocess.run([sys.executable, "-c", "import wheeld.clock.process"]).returncode)
from wheeld.cli.app import app
app()
"""
"""A program that runs `wheeld` as whoever starts it, and its clock as well."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")


def as_user(*groups: int) -> list[str]:
    in_groups = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", in_groups]


def run_as_stranger() -> list[str]:
    if os.getuid() != 0:
        pytest.skip("needs root, to be another user")
    command = [*as_user(), sys.executable, "-c", "import wheeld_client"]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(command, capture_output=True, timeout=60).returncode == 0:
            return as_user()
    pytest.skip("another user cannot run this Python")


def member(uid: int, *groups: int) -> list[str]:
    run_as_stranger()
    in_groups = ",".join(map(str, (NOBODY, *groups)))
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", f"--groups={in_groups}"]


def group_name() -> str:
    return grp.getgrgid(NOBODY if os.getuid() == 0 else os.getgid()).gr_name
