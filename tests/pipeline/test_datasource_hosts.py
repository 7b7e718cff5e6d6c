"""A journal of several hosts, without Spark: visits bring each expiration once.

Hosts are private runtime directories with a daemon each, and WHEELD_HOST says which one a task is
on. `Query` does with a reader what Spark does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from datasource_tasks import ROWS, Zygote, batches, partition_writer
from datasource_zygote import RECEIVING
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

import wheeld
from wheeld_pipeline import PipelineError
from wheeld_pipeline.datasource import visits
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.stream_reader import ExpirationReader, VisitPartition

COLUMNS = StructType().add("timer_id", "long").add("cookie", "long").add("host", "string")
HOSTS = ("east", "west")


@dataclass
class Cluster:
    """Two hosts with a daemon each, and the driver's, which has none."""

    options: dict[str, str]
    daemons: dict[str, wheeld.EmbeddedDaemon]
    move: Callable[[str], None]
    """Be on that host from now on."""
    environment: dict[str, dict[str, str]] = field(default_factory=dict)

    def write(self, host: str, first: int, count: int, late: bool = False) -> None:
        self.move(host)
        rows = batches(range(first, first + count), 1000.0 if late else 1.0)
        partition_writer(self.options, batch=first).write(0, rows)
        self.daemons[host].advance(2.0)
        self.move("head")


@pytest.fixture
def daemons(wheel_server: wheeld.ForkServer) -> Iterator[dict[str, wheeld.EmbeddedDaemon]]:
    config = {"capacity": 1 << 14, "virtual_clock": True, "keep_for": "1ms"}
    with wheel_server.embedded(**config) as east, wheel_server.embedded(**config) as west:
        yield {"east": east, "west": west}


@pytest.fixture
def cluster(
    daemons: dict[str, wheeld.EmbeddedDaemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    environment = {"head": {"WHEELD_HOST": "head", "WHEELD_RUNTIME_DIR": str(tmp_path / "none")}}
    for host, daemon in daemons.items():
        (tmp_path / host).mkdir()
        (tmp_path / host / "d").symlink_to(daemon)
        environment[host] = {"WHEELD_HOST": host, "WHEELD_RUNTIME_DIR": str(tmp_path / host)}

    def move(host: str) -> None:
        for name, value in environment[host].items():
            monkeypatch.setenv(name, value)

    move("head")
    options = {"name": "d", "journal": str(tmp_path / "journal"), "visit_interval": "0"}
    return Cluster(options, daemons, move, environment)


class Query:
    """A query of Spark's over the reader: offsets, batches, a checkpoint of one offset."""

    def __init__(self, cluster: Cluster, on: Callable[[int], str], **options: str) -> None:
        self.cluster, self.on = cluster, on
        """`on`: where Spark runs the n-th task of a visit."""
        self.reader = ExpirationReader(Options.parse(cluster.options | options), COLUMNS)
        self.offset: dict[str, Any] | None = None
        self.rows: list[tuple[int, int, str]] = []
        self.visits: list[int] = []
        self.visit: Callable[[str, VisitPartition], None] = self._visit
        """Runs a task of a visit on a host."""

    def batch(self) -> bool:
        reader, start = self.reader, self.offset or self.reader.initialOffset()
        limit = reader.getDefaultReadLimit()
        assert isinstance(limit, ReadAllAvailable | ReadMaxRows)
        end = json.loads(json.dumps(reader.latestOffset(start, limit)))
        self.offset = start
        if end == start:
            return False
        self.rows += self.run(start, end)
        reader.commit(end)
        self.offset = end
        return True

    def run(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, str]]:
        parts = self.reader.partitions(start, end)
        asked = [part for part in parts if isinstance(part, VisitPartition)]
        self.visits.append(len(asked))
        for number, part in enumerate(asked):
            self.visit(self.on(number), part)
        found = []
        for part in parts[len(asked) :]:
            for batch in self.reader.read(part):
                found += [tuple(row.values()) for row in batch.to_pylist()]
        return found

    def _visit(self, host: str, part: VisitPartition) -> None:
        self.cluster.move(host)
        assert list(self.reader.read(part)) == []
        self.cluster.move("head")

    def read(self, count: int) -> None:
        for _ in range(30):
            if len(self.rows) < count:
                self.batch()
        assert len(self.rows) >= count

    def to_the_end(self) -> None:
        self.reader.prepareForTriggerAvailableNow()
        while self.batch():
            pass

    def check(self, expected: dict[str, range]) -> None:
        for host, cookies in expected.items():
            assert sorted(row[1] for row in self.rows if row[2] == host) == list(cookies)
        assert len(self.rows) == len({row[:2] for row in self.rows})
        assert len(self.rows) == sum(map(len, expected.values()))


@pytest.fixture
def query(cluster: Cluster, rng_seed: int) -> Iterator[Query]:
    rng = random.Random(rng_seed)
    made = Query(cluster, lambda number: rng.choice(HOSTS))
    yield made
    made.reader.stop()


def test_all_hosts(cluster: Cluster, query: Query) -> None:
    cluster.write("east", 0, 500)
    cluster.write("west", 500, 700)
    query.read(1200)
    cluster.write("west", 1200, 10)
    query.read(1210)
    east, west = range(500), range(500, 1210)
    query.check({"east": east, "west": west})
    assert not query.batch(), "nothing is pending, so nobody has to be visited"


def test_the_drivers_host_is_one_of_them(cluster: Cluster, query: Query) -> None:
    cluster.write("east", 0, 50)
    cluster.write("west", 50, 50)
    cluster.environment["head"] = cluster.environment["east"]
    cluster.move("head")
    assert query.batch()
    query.check({"east": range(50)})
    query.read(100)
    query.check({"east": range(50), "west": range(50, 100)})


def test_a_host_that_is_missed(cluster: Cluster, query: Query) -> None:
    cluster.write("east", 0, 5)
    cluster.write("west", 5, 5)
    query.on = lambda number: "west" if number == 13 else "east"
    query.read(10)
    query.check({"east": range(5), "west": range(5, 10)})
    assert query.visits[:4] == [4, 8, 16, 0]


def test_a_visit_for_each_interval(cluster: Cluster, query: Query) -> None:
    cluster.write("east", 0, 5, late=True)
    slow = Query(cluster, query.on, visit_interval="1000")
    assert slow.batch()
    assert not slow.batch()
    assert slow.visits == [2]
    slow.reader.stop()
    assert all(query.batch() for _ in range(3))


def test_a_batch_that_runs_again(cluster: Cluster, query: Query) -> None:
    cluster.write("east", 0, 100)
    query.read(100)
    first, offset = list(query.rows), query.offset
    assert offset is not None
    cluster.write("east", 100, 100)
    start = query.reader.initialOffset() | {"hosts": {}}
    assert sorted(query.run(start, offset)) == sorted(first)
    query.read(200)
    query.check({"east": range(200)})


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.process.communicate()


@pytest.mark.parametrize("point", RECEIVING)
def test_a_visit_that_is_killed(cluster: Cluster, query: Query, zygote: Zygote, point: str) -> None:
    cluster.write("east", 0, ROWS)
    cluster.write("west", ROWS, ROWS)
    deaths = {"east": 0, "west": 0}

    def visit(host: str, part: VisitPartition) -> None:
        task = {"visit": [part.word, part.journal], "environment": cluster.environment[host]}
        while deaths[host] < 2:
            assert not zygote.attempt(cluster.options, point, **task)
            deaths[host] += 1
            host = query.on(0)
            task["environment"] = cluster.environment[host]
        query._visit(host, part)

    query.visit = visit
    query.read(2 * ROWS)
    query.check({"east": range(ROWS), "west": range(ROWS, 2 * ROWS)})
    assert deaths == {"east": 2, "west": 2}


def test_a_query_that_ends(cluster: Cluster, query: Query) -> None:
    cluster.write("east", 0, 50)
    cluster.write("west", 50, 50)
    cluster.write("west", 100, 1, late=True)
    query.on = lambda number: "west" if number == 5 else "east"
    query.to_the_end()
    query.check({"east": range(50), "west": range(50, 100)})
    assert query.visits == [4, 8, 0]


def test_a_query_that_ends_without_a_host(
    cluster: Cluster,
    query: Query,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visits, "ROUNDS", 3)
    cluster.write("east", 0, 5)
    cluster.write("west", 5, 5)
    query.on = lambda number: "east"
    query.to_the_end()
    query.check({"east": range(5)})
    assert query.visits == [4, 8, 16, 0]
    assert "no task of this query ran on west" in caplog.text


def test_rows_of_a_batch_are_shared(cluster: Cluster, query: Query) -> None:
    cluster.write("east", 0, 1000)
    cluster.write("west", 1000, 10)
    query.reader = ExpirationReader(
        Options.parse(cluster.options | {"max_rows_per_trigger": "100"}), COLUMNS
    )
    query.read(11)
    assert len(query.rows) <= 110
    query.read(len(query.rows) + 1)  # the first batch may come before one of the hosts was visited
    assert {host for *_, host in query.rows} == {"east", "west"}
    query.read(1010)
    query.check({"east": range(1000), "west": range(1000, 1010)})


def test_a_host_that_is_gone_for_long(cluster: Cluster, query: Query) -> None:
    """Its expired timers wait for longer than its daemon keeps the remains of others."""
    cluster.write("east", 0, 5)
    cluster.write("west", 5, 5)
    query.on = lambda number: "east"
    query.read(5)
    query.check({"east": range(5)})
    cluster.daemons["west"].advance(1e6)
    query.on = lambda number: "west"
    query.read(10)
    query.check({"east": range(5), "west": range(5, 10)})


def test_a_journal_that_is_not_shared(cluster: Cluster, query: Query, tmp_path: Path) -> None:
    cluster.write("east", 0, 5)
    token, local = Journal(cluster.options["journal"]).token, str(tmp_path / "local")
    here = Options.parse(cluster.options | {"journal": local})
    with pytest.raises(PipelineError, match=r"is another journal here .* on a file system"):
        visits.visit("word", token, here)


def test_nothing_anywhere(cluster: Cluster, query: Query, caplog: pytest.LogCaptureFixture) -> None:
    assert not query.batch()
    assert not query.batch()
    assert caplog.text.count("nothing is written with the journal") == 1
    cluster.write("east", 0, 5)
    query.read(5)


def test_the_name_of_a_host(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELD_HOST", "../x")
    with pytest.raises(PipelineError, match="expected the name of this host"):
        Journal(cluster.options["journal"])
