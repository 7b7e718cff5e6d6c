"""Groups of real consumers whose members come, go and die."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("kio")

from broker_runs import Consumer, Run, produce, running, until
from examples.broker import clients

PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with running(tmp_path_factory.mktemp("broker")) as run:
        yield run


class Members:
    """Consumers of one group, polled in turn."""

    def __init__(self, run: Run, topic: str, strategy: str) -> None:
        self._run, self._topic, self._strategy = run, topic, strategy
        self.members: list[Any] = []
        self.revoked: list[int] = []

    def add(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self._run.address,
                "group.id": self._topic,
                "partition.assignment.strategy": self._strategy,
                "heartbeat.interval.ms": 100,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )

        def revoked(_: Any, parts: list[Any]) -> None:
            self.revoked += [one.partition for one in parts]

        consumer.subscribe([self._topic], on_revoke=revoked)
        self.members.append(consumer)

    def settled(self) -> bool:
        """Has every partition one owner, and every member its share?"""
        for one in self.members:
            one.poll(0.01)
        owned = [[part.partition for part in one.assignment()] for one in self.members]
        sizes = sorted(map(len, owned))
        return (
            sorted(chain.from_iterable(owned)) == list(range(PARTITIONS))
            and sizes[-1] - sizes[0] <= 1
        )


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_four_members_come_and_go(broker: Run, strategy: str) -> None:
    """Cooperative members keep what they need not give away; eager ones give all away."""
    pytest.importorskip("confluent_kafka")
    topic = f"rebalance-{strategy}"
    produce(broker, "confluent-kafka", topic, 20)
    group = Members(broker, topic, strategy)
    for count in range(1, 5):
        group.add()
        until(group.settled, f"{count} members")
    given = len(group.revoked)
    assert (given > 2 * PARTITIONS) if strategy == "range" else (given <= PARTITIONS)
    for count in range(3, 0, -1):
        group.members.pop(0).close()
        until(group.settled, f"{count} members left")
    group.members.pop().close()


def test_a_consumer_that_is_killed_leaves_its_partitions_to_others(
    broker: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each library one that is killed, and one that goes on."""
    library = next((one for one in clients.installed() if one != "kcat"), None)
    if library is None:
        pytest.skip("no client is installed")
    monkeypatch.setenv("BROKER_SESSION_MS", "1000")
    produce(broker, library, "killed", 100)
    first, second = (Consumer(broker, library, "killed", "killed") for _ in range(2))
    until(lambda: first.lines and second.lines, "both read")
    first.process.kill()
    produce(broker, library, "killed", 100, "later")
    later = {b"later/%d" % n for n in range(100)}
    until(lambda: later <= {line[2] for line in first.lines + second.lines}, "the rest is read")
    first.close()
    second.close()
