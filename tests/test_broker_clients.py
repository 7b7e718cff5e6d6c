"""The broker of the example, as clients that know nothing of it see it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import pytest

from broker_runs import Consumer, Run, produce, running, until

pytest.importorskip("kio")

from examples.broker import clients

LIBRARIES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(name not in clients.installed(), reason=f"{name} is not there"),
    )
    for name in clients.LIBRARIES
]
COUNT = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with running(tmp_path_factory.mktemp("broker"), followers=1, min_in_sync=2) as run:
        yield run


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_reads_what_a_client_wrote(broker: Run, library: str) -> None:
    """acks=all by an idempotent producer, with a follower that has to have it; then a group."""
    told = produce(broker, library, library, COUNT)
    assert [value for _, _, value in told] == [b"v/%d" % number for number in range(COUNT)] or (
        sorted(value for _, _, value in told) == sorted(b"v/%d" % n for n in range(COUNT))
    )
    with Consumer(broker, library, library, f"of {library}") as consumer:
        until(lambda: len(consumer.lines) >= COUNT, f"{library} has read all")
    if library != "kcat":  # which does not say where a record is
        assert sorted(consumer.lines) == sorted(told)
    assert len(consumer.lines) == len(set(consumer.lines)) == COUNT
    for _, part in groupby(sorted(consumer.lines), itemgetter(0)):
        offsets = [offset for _, offset, _ in part]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_goes_on_where_it_was(broker: Run, library: str) -> None:
    """What a group has committed the next consumer of it does not read again."""
    topic = f"resume-{library}"
    seen = []
    for turn in ("first", "second"):
        produce(broker, library, topic, 50, turn)
        with Consumer(broker, library, topic, "resume") as consumer:
            until(lambda: len(consumer.lines) >= 50, f"the {turn} 50")
        seen += consumer.lines
    assert len(seen) == len(set(seen)) == 100
