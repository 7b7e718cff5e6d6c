"""The extension in a second interpreter of a process: refused there, and harmless here."""

import subprocess
import sys

THERE = """
import sys
sys.path[:] = {path!r}
try:
    import wheeld_core._native
except ImportError as error:
    print(error, flush=True)
else:
    print("imported", flush=True)
"""
HERE = """
import sys
from wheeld_core import _native
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
interpreters.run_string(other, sys.argv[1].format(path=sys.path))
interpreters.destroy(other)
try:
    _native.Clock(bytearray(9), bytearray(9))
except ValueError as error:
    print("here it works", flush=True)
"""


def test_refused_with_a_reason() -> None:
    command = [sys.executable, "-c", HERE, THERE]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert "subinterpreter" in lines[0]
    assert lines[1] == "here it works"
