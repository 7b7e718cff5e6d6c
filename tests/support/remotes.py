"""Workers in other processes, that do what a test tells them and answer."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from daemons import LONG, Daemon

SERVE = """
import json, os, signal, sys, threading, time
import numpy as np
from wheeld_client import *
from wheeld_client import connect
def receive(count):
    parts = []
    while sum(map(len, parts)) < count:
        part = timers.poll(60)
        assert len(part), "nothing came for 60 s"
        assert (part["fired"] >= part["deadline"]).all(), "early"
        parts += part["cookie"].tolist(),
    return sum(parts, [])
answer = ""
try:
    timers = connect(sys.argv[1], **json.loads(sys.argv[2]))
except Exception as error:
    answer = f"{type(error).__name__}: {error}"
print(json.dumps({"error": answer}), flush=True)
for line in sys.stdin:
    code, result, answer = json.loads(line), None, ""
    try:
        try:
            result = eval(code)
        except SyntaxError:
            exec(code)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps({"error": answer, "value": result}), flush=True)
"""


class RemoteError(AssertionError):
    """The error of a call in the other process: "KindOfError: its message"."""


class Remote:
    """A worker in a process of its own, that evaluates what it is told: `timers` is its client.

    Parameters
    ----------
    daemon : Daemon or Path
        Whom to connect to.
    before : list of str
        Put before the command, such as `setpriv ...`.
    **options
        Of `connect`.
    """

    def __init__(self, daemon: Daemon | Path, before: list[str] | None = None, **options: Any):
        place = daemon.directory if isinstance(daemon, Daemon) else daemon
        self.process = subprocess.Popen(
            [*(before or []), sys.executable, "-c", SERVE, str(place), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._rest = b""
        try:
            self.answer()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code).encode() + b"\n")

    def answer(self) -> Any:
        assert self.process.stdout is not None
        give_up = time.monotonic() + 2 * LONG
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], give_up - time.monotonic())[0], (
                "late"
            )
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            assert part, f"the worker (pid {self.pid}) ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if answer["error"]:
            raise RemoteError(answer["error"])
        return answer.get("value")

    def ask(self, code: str) -> Any:
        self.tell(code)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        with self.process:
            pass

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
