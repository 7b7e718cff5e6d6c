"""Idempotent producers of each library, whose connections break inside requests and answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kio")

import broker_senders
from broker_members import MODULES
from broker_outside import PRODUCE, Outside, create, read_all, started
from broker_proxy import ANSWER, REQUEST, Proxy
from broker_runs import until

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in kafka-python
COUNT, PARTITIONS = 600, 3
EVERY = {(REQUEST, PRODUCE): 5, (ANSWER, PRODUCE): 4}
KILLS = (10, 20, 30)
"""After so many answers to produce requests."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Outside]:
    with started(tmp_path, followers=1) as run:
        yield run


@pytest.mark.parametrize("library", broker_senders.LIBRARIES)
def test_all_is_there_once_and_in_order(broker: Outside, library: str, rng_seed: int) -> None:
    """Where its producer was told, too. Workers are killed meanwhile."""
    pytest.importorskip(MODULES[library])
    create(broker, library)
    over = threading.Event()

    def kill() -> None:
        for answers in KILLS:
            until(
                lambda least=answers: proxy.seen[ANSWER, PRODUCE] >= least or over.is_set(),
                "answers",
            )
            broker.kill_worker(broker.workers()[0].pid)

    sent = [(number % PARTITIONS, b"%d" % number) for number in range(COUNT)]
    killer = threading.Thread(target=kill)
    with Proxy(broker.port, EVERY, rng_seed) as proxy:
        killer.start()
        try:
            told = broker_senders.LIBRARIES[library](proxy.address, library, sent)
        finally:
            over.set()
            killer.join()
    assert proxy.seen[ANSWER, PRODUCE] >= KILLS[-1]
    assert min(proxy.cuts[REQUEST], proxy.cuts[ANSWER]) >= 5
    for number in range(PARTITIONS):
        values = read_all(broker, library, number)
        assert values == [value for partition, value in sent if partition == number]
        offsets = {offset: value for partition, offset, value in told if partition == number}
        assert offsets == dict(enumerate(values))
