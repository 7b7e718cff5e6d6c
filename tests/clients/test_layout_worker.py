"""A worker in Rust that was written from shm_layout.md: the page says all that one needs."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from common_fixtures import embedded
from daemons import status_of, until
from programs import ROOT
from seeds import SEED
from wheeld_client import connect

PAGE = (ROOT / "shm_layout.md").read_text()
SOURCE = ROOT / "examples/rust/worker.rs"
LONG = 60.0

daemon = embedded(capacity=8192, max_workers=8)


def constant(name: str) -> str:
    found = re.search(rf"^\| `{name}` \| (\w+) \|$", PAGE, re.M)
    assert found, name
    return found[1]


def stated(place: str) -> int:
    table, _, field = place.partition(".")
    (body,) = re.findall(rf"<!-- table {table} -->\n(.*?)<!-- end -->", PAGE, re.S)
    pattern = rf"^\| (\d+) \| `{field}` \|" if field else rf"^`{table}`, (\d+) bytes$"
    (number,) = re.findall(pattern, body, re.M)
    return int(number)


def test_its_offsets_are_those_of_the_page() -> None:
    source = SOURCE.read_text()
    named = re.findall(r"\bat!\(([\w.]+) = (\d+)\)", source)
    assert len({place for place, _ in named}) == 36
    assert len(re.findall(r"\bat!\(", source)) == len(named)
    sizes = re.findall(r"const (LINE|SLOT|RECORD): usize = (\d+);", source)
    tables = {"PORT": "port", "SLOT": "slot", "RECORD": "completion"}
    for place, number in [*named, *((tables[name], size) for name, size in sizes)]:
        assert int(number) == stated(place), f"{place}: the page says {stated(place)}"


@pytest.mark.skipif(shutil.which("rustc") is None, reason="no rustc")
def test_account_beside_python(tmp_path: Path, daemon: str) -> None:
    print(f"seed {SEED}")
    program = tmp_path / "worker"
    build = ["rustc", "--edition", "2021", "-D", "warnings", "-O", str(SOURCE), "-o", str(program)]
    subprocess.run(build, check=True)
    with connect(daemon, worker="python") as timers:
        known = [constant("LAYOUT_VERSION"), constant("FINGERPRINT")]
        words = [str(program), daemon, *known, "3000", str(SEED)]
        other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        timers.schedule_many(np.linspace(0, 0.3, 2000), np.arange(2000, dtype=np.uint64))
        got: list[int] = []
        until(lambda: got.extend(timers.poll(0.1)["cookie"]) or len(got) >= 2000, "all of Python's")
        printed, _ = other.communicate(timeout=LONG)
        got.extend(timers.poll()["cookie"])
    assert other.returncode == 0
    due, ended, counts = dict[str, int](), set[str](), Counter[str]()
    for word, id, *times in map(str.split, printed.splitlines()):
        counts[word] += 1
        if word in ("scheduled", "moved"):
            due[id] = int(times[0])
            continue
        assert id in due.keys() - ended, "strange, or twice"
        ended.add(id)
        if word == "received":
            deadline, fired, seen = map(int, times)
            assert fired >= deadline, "early"
            assert seen >= due[id], "early"
    assert counts["scheduled"] == 3000 == counts["received"] + counts["cancelled"], counts
    assert min(counts["cancelled"], counts["moved"]) > 100, counts
    assert sorted(got) == list(range(2000))
    assert status_of(daemon)["pending"] == 0
    assert status_of(daemon)["workers"] == []
