"""Servers with an application of `web_apps` or `jobs_apps`, and requests to them."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from daemons import LONG, until

SUPPORT = Path(__file__).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Server:
    """Where it listens, and its first process."""

    def __init__(self, port: int) -> None:
        self.port, self.pid = port, 0

    def get(self, path: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)) as peer:
            peer.request("GET", path)
            answer = peer.getresponse()
            return answer.status, answer.read().decode()

    def serves(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True


@contextmanager
def gunicorn(app: str, daemon: str, *options: str, log: Path) -> Iterator[Server]:
    with _serving("gunicorn", ["--bind", "127.0.0.1:{port}", *options, app], daemon, log) as server:
        yield server


@contextmanager
def uvicorn(app: str, daemon: str, *options: str, log: Path) -> Iterator[Server]:
    words = ["--port", "{port}", "--factory", *options, app]
    with _serving("uvicorn", words, daemon, log) as server:
        yield server


@contextmanager
def _serving(program: str, words: list[str], daemon: str, log: Path) -> Iterator[Server]:
    server = Server(free_port())
    command = [sys.executable, "-m", program, *(word.format(port=server.port) for word in words)]
    environment = {
        **os.environ,
        "WHEELD_TEST_DAEMON": daemon,
        "WHEELD_TEST_PLACE": str(log.parent),
        "PYTHONPATH": str(SUPPORT),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, cwd=SUPPORT, stdout=out, stderr=out)
        try:
            server.pid = process.pid
            until(lambda: process.poll() is not None or server.serves(), "a server that listens")
            assert process.poll() is None, log.read_text()
            yield server
        finally:
            process.terminate()
            process.wait(LONG)
