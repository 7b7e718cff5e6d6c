"""Where consumers of each library begin and go on: commits, seeks, offsets of times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from broker_outside import outside

pytest.importorskip("kio")

import broker_readers
from broker_members import MODULES
from broker_outside import PRODUCE, Outside, batch, create, decoded, produce_frame, receive

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in kafka-python
BATCHES, EACH = 6, 5
COUNT = BATCHES * EACH
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


broker = outside()


def append(run: Outside, topic: str, number: int) -> None:
    """The batch of a minute, of five records."""
    values = [b"%d" % (EACH * number + n) for n in range(EACH)]
    with run.connected() as peer:
        records = batch(*values, stamp=BEGIN + timedelta(minutes=number))
        peer.sendall(produce_frame(topic, 0, records))
        decoded(PRODUCE, 7, receive(peer))


@pytest.fixture(params=broker_readers.LIBRARIES)
def library(request: pytest.FixtureRequest, broker: Outside) -> str:
    """One that is installed; its topic has thirty records."""
    name: str = request.param
    pytest.importorskip(MODULES[name])
    return name


@pytest.fixture
def topic(request: pytest.FixtureRequest, library: str, broker: Outside) -> str:
    """Of thirty records."""
    name = f"{request.function.__name__}-{library}"
    create(broker, name)
    for number in range(BATCHES):
        append(broker, name, number)
    return name


def test_another_one_goes_on_where_the_commit_was(
    broker: Outside, library: str, topic: str
) -> None:
    """In the middle of a batch, and whatever else was read."""
    begin, read = 0, []
    for commit in (0, 7, 12, 12, 29, COUNT - 1):
        one = broker_readers.LIBRARIES[library](broker.address, topic)
        got = one.read(COUNT - begin)
        one.commit(commit)
        one.close()
        assert got == [(n, b"%d" % n) for n in range(begin, COUNT)]
        begin = commit
        read.append(len(got))
    assert read == [30, 30, 23, 18, 18, 1]


def test_seeks_and_bounds(broker: Outside, library: str, topic: str) -> None:
    one = broker_readers.LIBRARIES[library](broker.address, topic)
    try:
        assert one.read(1)[0] == (0, b"0")
        assert one.bounds() == (0, COUNT)
        one.seek(17)
        assert one.read(1)[0] == (17, b"17")
        one.seek_to_beginning()
        assert one.read(COUNT)[0] == (0, b"0")
        one.seek_to_end()
        append(broker, topic, BATCHES)
        assert one.read(1)[0][0] == COUNT
        assert one.bounds() == (0, COUNT + EACH)
    finally:
        one.close()


def test_offsets_of_times_are_those_of_batches(broker: Outside, library: str, topic: str) -> None:
    """The first batch with a record as late; None if there is none."""
    one = broker_readers.LIBRARIES[library](broker.address, topic)
    try:
        one.read(1)
        begin = int(BEGIN.timestamp() * 1000)
        for minutes, offset in ((0, 0), (0.5, EACH), (1, EACH), (4.9, 5 * EACH), (6, None)):
            assert one.at(begin + int(60_000 * minutes)) == offset
    finally:
        one.close()
