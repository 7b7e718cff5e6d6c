"""Long polls and sessions of real clients, under a clock that stands until a test moves it.

So what ends has ended for its cause, and not because its time was up; and what lasts has lasted for
its time. The clients' own clocks go on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from common_fixtures import embedded

pytest.importorskip("kio")

import broker_members
import broker_pollers
import wheeld
from broker_members import LIBRARIES, MODULES, PARTITIONS, Group
from broker_outside import (
    FETCH,
    PRODUCE,
    Outside,
    batch,
    create,
    decoded,
    frame,
    produce_frame,
    receive,
    started,
)
from broker_proxy import ANSWER, Proxy
from broker_runs import until
from programs import of_checkout

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in kafka-python
ROUNDS = 5
SESSION_MS = 10_000
DESCRIBE = 15


daemon = embedded(capacity=1 << 16, payload_bytes=256, pools=["requests=16M"], virtual_clock=True)


@pytest.fixture(scope="module")
def broker(
    daemon: wheeld.EmbeddedDaemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outside]:
    place = tmp_path_factory.mktemp("broker")
    with started(place, "--workers", "3", "--name", str(daemon)) as run:
        yield run


@pytest.mark.parametrize("library", broker_pollers.LIBRARIES)
def test_a_long_poll_ends_by_an_append_in_another_process(broker: Outside, library: str) -> None:
    """It would wait for 30 s, and those never pass."""
    pytest.importorskip(MODULES[library])
    create(broker, library)
    with Proxy(broker.port) as proxy, broker_pollers.LIBRARIES[library](proxy.address) as poller:
        poller.start(library)
        for number in range(ROUNDS):
            until(lambda: proxy.waiting.get(FETCH), "it waits")
            (peer,) = proxy.waiting[FETCH]
            answered = proxy.seen[ANSWER, FETCH]
            time.sleep(0.1)
            assert proxy.seen[ANSWER, FETCH] == answered == number
            with broker.connected_elsewhere(broker.worker_of(peer)) as writer:
                writer.sendall(produce_frame(library, 0, batch(b"%d" % number)))
                decoded(PRODUCE, 7, receive(writer))
            until(lambda least=number: len(poller.values) > least, "it has read it")
        assert poller.values == [b"%d" % number for number in range(ROUNDS)]


def members(run: Outside, group: str) -> int:
    """How many the broker knows."""
    with run.connected() as peer:
        peer.sendall(frame(DESCRIBE, 3, groups=[group], include_authorized_operations=False))
        _, body = decoded(DESCRIBE, 3, receive(peer))
    return len(body.groups[0].members)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_killed_consumer_is_a_member_for_its_session(
    broker: Outside, daemon: wheeld.EmbeddedDaemon, library: str
) -> None:
    """Then, and not before, another one has its partitions."""
    pytest.importorskip(MODULES[library])
    topic = f"killed-{library}"
    create(broker, topic)
    group = Group(broker.address, topic, library, "range", 10 * SESSION_MS)

    def is_alone() -> bool:
        daemon.advance(0.1)  # an empty group waits for others
        return len(group.owner) == PARTITIONS

    command = [sys.executable, broker_members.__file__, broker.address, topic, library]
    try:
        group.join()
        until(is_alone, "it has all")
        with subprocess.Popen([*command, str(SESSION_MS)], env=of_checkout()) as victim:
            try:
                until(lambda: len(group.owner) == PARTITIONS // 2, "they share")
            finally:
                victim.kill()
        time.sleep(0.3)  # what it had sent before is handled: its session is from then on
        daemon.advance(SESSION_MS / 1000 - 1)
        time.sleep(0.3)  # some heartbeats of the other one
        assert members(broker, topic) == 2
        assert len(group.owner) == PARTITIONS // 2
        daemon.advance(1.001)
        group.settle(PARTITIONS)
        assert members(broker, topic) == 1
    finally:
        group.end()
    assert group.faults == []
