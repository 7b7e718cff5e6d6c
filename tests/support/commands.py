"""The command `wheeld` for tests: run to its end, or `wheeld start` in the foreground."""

import os
import subprocess
import sys
from pathlib import Path

LONG = 60.0


def wheeld_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wheeld", *arguments],
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


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


class Daemon:
    """`wheeld start` in the foreground of another process."""

    def __init__(self, name: str, runtime_dir: Path, *options: str) -> None:
        self.name, self.runtime_dir = name, runtime_dir
        self.directory = runtime_dir / name
        self.where = ("--name", name, "--runtime-dir", str(runtime_dir))
        command = [sys.executable, "-m", "wheeld", "start", *self.where, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said = ""
        assert self.process.stderr is not None
        while "serving" not in self.said:
            line = self.process.stderr.readline()
            assert line, f"it did not start: {self.said}"
            self.said += line

    def end(self) -> int:
        self.said += self.process.communicate(timeout=LONG)[1]
        assert not [name for name in os.listdir("/dev/shm") if self.name in name]
        assert not self.directory.exists()
        return self.process.returncode
