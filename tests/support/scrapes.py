"""Scrapers of a daemon: a plain request, and a real Prometheus with its queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from commands import LONG

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="no prometheus"
)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LONG) as answer:
        return str(answer.read().decode())


def value(text: str, sample: str) -> float:
    """Of the sample that begins so; the labels of the daemon and of no group are left out."""
    lines = [re.sub(r"(daemon=\"[^\"]*\"|group=\"\"),?", "", line) for line in text.splitlines()]
    found = [line for line in lines if line.replace("{}", "").startswith(sample)]
    return float(found[0].split()[-1])


@contextmanager
def prometheus(directory: Path, url: str, *options: str) -> Iterator[str]:
    target = urllib.parse.urlsplit(url).netloc
    job = f"[{{job_name: wheeld, static_configs: [{{targets: ['{target}']}}]}}]"
    times = "{scrape_interval: 1s, scrape_timeout: 1s}"
    (directory / "p.yml").write_text(f"global: {times}\nscrape_configs: {job}\n")
    log, db = directory / "log", directory / "db"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={directory}/p.yml", f"--storage.tsdb.path={db}",
             "--web.listen-address=127.0.0.1:0", *options], stderr=out,
        )  # fmt: skip
    try:
        give_up = time.monotonic() + LONG
        found = ""
        while not found:
            assert time.monotonic() < give_up, log.read_text()
            assert process.poll() is None, log.read_text()
            found = next((listening_on(process.pid)), "")
            time.sleep(0.05)
        yield found
    finally:
        process.terminate()
        process.wait(LONG)


def listening_on(pid: int) -> Iterator[str]:
    for connection in psutil.net_connections("tcp"):
        if connection.pid == pid and connection.status == psutil.CONN_LISTEN:
            yield f"127.0.0.1:{connection.laddr.port}"


def ask(at: str, query: str) -> float:
    url = f"http://{at}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    give_up = time.monotonic() + LONG
    while time.monotonic() < give_up:
        try:
            found = json.loads(fetch(url))["data"]["result"]
        except OSError:
            found = []
        if found:
            return float(found[0]["value"][1])
        time.sleep(0.1)
    raise AssertionError(f"no answer to {query}")
