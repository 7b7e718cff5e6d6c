"""A partition of the broker: what stands in it after a kill at any step, and who has it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker_runs import batch
from common_fixtures import embedded

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from examples.broker import batches
from examples.broker.log import OwnWords, Partition
from examples.broker.wire import RequestRefused
from wheeld_client import Watermarks, connect

SECOND = 1_000_000_000


daemon = embedded(capacity=1_000)


class Open:
    """Opens partitions, each time as another process of the broker does: with words that all
    share, and nothing else.
    """

    def __init__(self, daemon: str) -> None:
        self._daemon = daemon
        self._stack = ExitStack()

    def __call__(self, place: Path, **options: Any) -> Partition:
        timers = self._stack.enter_context(connect(self._daemon))
        return Partition(place, Watermarks(timers, "words"), (str(place), 0), **options)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def opened(daemon: str) -> Iterator[Open]:
    with closing(Open(daemon)) as found:
        yield found


def append(partition: Partition, raw: bytes, now_ns: int = 0) -> int:
    ((head, part),) = batches.split(raw)
    return partition.append(head, part, now_ns)


def everything(partition: Partition) -> bytes:
    return partition.read(0, partition.end, 1 << 30, at_least_one=True)


def test_batches_come_out_as_they_went_in(tmp_path: Path, opened: Open) -> None:
    log = opened(tmp_path)
    first, second = batch(b"a", b"b", b"c"), batch(b"d")
    assert append(log, first) == 0
    assert append(log, second) == 3
    placed = [bytes(part) for _, part in batches.split(everything(log))]
    assert [part[21:] for part in placed] == [first[21:], second[21:]]
    assert [batches.header(part).base for part in placed] == [0, 3]
    assert log.end == log.watermark == 4
    assert log.read(2, 4, 1, at_least_one=True) == placed[0]  # the batch that has offset 2
    assert log.read(3, 4, 1, at_least_one=True) == placed[1]
    assert log.read(2, 4, 1, at_least_one=False) == b""
    assert log.read(2, 3, 1 << 20, at_least_one=True) == placed[0]
    assert log.read(4, 4, 1 << 20, at_least_one=True) == b""
    assert log.size(1, 4) == len(first) + len(second)


@pytest.mark.parametrize("written", [0, 1, 60, 61, 200, None])
def test_a_writer_killed_before_its_commit_has_changed_nothing(
    tmp_path: Path, opened: Open, written: int | None
) -> None:
    other = opened(tmp_path)
    append(other, batch(b"before"))
    torn = batch(b"x" * 200)
    with open(tmp_path / "log", "ab") as file:
        file.write(torn[:written])
    assert opened(tmp_path).end == other.end == 1
    assert append(other, batch(b"after")) == 1
    assert [part.count for part, _ in batches.split(everything(opened(tmp_path)))] == [1, 1]


@pytest.mark.parametrize(
    "torn", [b"\0" * 7, batch(b"whole")[:-1], None], ids=["few", "most", "bad"]
)
def test_a_broker_that_starts_cuts_off_what_is_no_batch(
    tmp_path: Path, opened: Open, torn: bytes | None
) -> None:
    log = opened(tmp_path)
    append(log, batch(b"a", b"b"))
    whole = everything(log)
    if torn is None:
        damaged = bytearray(whole)
        damaged[-1] ^= 1
        torn = bytes(damaged)
    with open(tmp_path / "log", "ab") as file:
        file.write(torn)
    found = Partition(tmp_path, OwnWords())  # as a host leaves it that lost its power
    found.recover()
    assert found.end == 2
    assert everything(found) == whole == (tmp_path / "log").read_bytes()


def test_a_batch_of_an_idempotent_producer_is_there_once(tmp_path: Path, opened: Open) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    sent = [batch(b"a", b"b", producer=7, sequence=sequence) for sequence in (0, 2, 4)]
    assert [append(first, raw) for raw in sent] == [0, 2, 4]
    for log in (first, second, opened(tmp_path)):
        assert [append(log, raw) for raw in sent] == [0, 2, 4]
        with pytest.raises(RequestRefused) as refused:
            append(log, batch(b"x", producer=7, sequence=7))
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
    assert append(second, batch(b"c", producer=7, sequence=6)) == 6
    assert append(first, batch(b"of the next epoch", producer=7, sequence=0, epoch=1)) == 7
    with pytest.raises(RequestRefused) as refused:
        append(second, batch(b"late", producer=7, sequence=7, epoch=0))
    assert refused.value.code is ErrorCode.invalid_producer_epoch
    assert append(second, batch(b"of another", producer=8, sequence=0)) == 8


def test_a_producer_that_the_log_does_not_know_begins_anywhere(
    tmp_path: Path, opened: Open
) -> None:
    log = opened(tmp_path)
    assert append(log, batch(b"second", producer=7, sequence=5)) == 0
    with pytest.raises(RequestRefused) as refused:
        append(log, batch(b"third", producer=7, sequence=7))
    assert refused.value.code is ErrorCode.out_of_order_sequence_number


def test_sequences_begin_anew_after_the_last(tmp_path: Path, opened: Open) -> None:
    head = batches.header(batch(b"a", b"b", producer=7, sequence=2**31 - 1))
    assert head.next_sequence == 1


def test_followers_in_sync_hold_the_watermark(tmp_path: Path, opened: Open) -> None:
    log = opened(tmp_path, followers=2, lag_ns=10 * SECOND, now_ns=0)
    append(log, batch(b"a", b"b"), 1 * SECOND)
    assert (log.end, log.watermark, log.in_sync(1 * SECOND)) == (2, 0, [1, 2])
    log.follow(1, 2, 2 * SECOND)
    assert log.watermark == 0
    log.follow(2, 2, 2 * SECOND)
    assert log.watermark == 2
    append(log, batch(b"c"), 3 * SECOND)
    log.follow(1, 3, 11 * SECOND)
    assert log.watermark == 2  # 2 had all at second 2
    assert not log.settle(11 * SECOND)
    assert log.settle(13 * SECOND)
    assert (log.watermark, log.in_sync(13 * SECOND)) == (3, [1])
    log.follow(2, 2, 14 * SECOND)  # back, and behind the watermark: it does not count
    assert log.in_sync(14 * SECOND) == [1]
    append(log, batch(b"d"), 14 * SECOND)
    log.follow(1, 4, 14 * SECOND)
    assert log.watermark == 4
    log.follow(2, 4, 15 * SECOND)
    assert log.in_sync(15 * SECOND) == [1, 2]


def test_a_follower_that_had_all_when_it_asked_is_in_sync_under_load(
    tmp_path: Path, opened: Open
) -> None:
    log = opened(tmp_path, followers=1, lag_ns=SECOND, now_ns=0)
    for second in range(10):
        append(log, batch(b"x"), second * SECOND // 2)
        log.follow(1, second, second * SECOND // 2)
        assert log.in_sync(second * SECOND // 2) == [1]
    assert log.watermark == 9


def test_what_is_replicated_is_shared_and_outlives_a_process(tmp_path: Path, opened: Open) -> None:
    one = opened(tmp_path, followers=1, lag_ns=SECOND, now_ns=0)
    append(one, batch(b"a"), 0)
    other = opened(tmp_path, followers=1, lag_ns=SECOND, now_ns=0)
    other.follow(1, 1, 0)
    assert one.watermark == other.watermark == 1
    other.follow(1, 5, 0)  # of a log that does not reach that far
    assert one.in_sync(0) == [1]


def test_a_copy_takes_what_comes_next_and_nothing_else(tmp_path: Path, opened: Open) -> None:
    log, copy = opened(tmp_path / "log"), opened(tmp_path / "copy")
    for value in (b"a", b"b", b"c"):
        append(log, batch(value))
    raw = everything(log)
    third = raw[len(raw) // 3 * 2 :]
    with pytest.raises(RequestRefused):
        copy.copy(third)
    copy.copy(raw[: len(raw) // 3 * 2])
    copy.copy(raw)  # partly known
    assert everything(copy) == raw
    with pytest.raises(RequestRefused):
        copy.copy(raw[:-1] + b"!")


def test_the_first_batch_that_is_late_enough(tmp_path: Path, opened: Open) -> None:
    log = opened(tmp_path)
    stamp = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    append(log, batch(b"a", b"b"))
    assert log.find_time(0) == log.find_time(stamp) == (0, stamp)
    assert log.find_time(stamp + 1) is None


def _changed(at: int, form: str, value: int) -> Callable[[bytearray], None]:
    return lambda raw: struct.pack_into(form, raw, at, value)


@pytest.mark.parametrize(
    ("bend", "code"),
    [
        (_changed(16, ">b", 1), ErrorCode.unsupported_for_message_format),
        (_changed(8, ">i", 40), ErrorCode.corrupt_message),
        (_changed(8, ">i", -1), ErrorCode.corrupt_message),
        (_changed(8, ">i", 2**31 - 1), ErrorCode.corrupt_message),
        (_changed(17, ">I", 1), ErrorCode.corrupt_message),
        (_changed(60, ">B", 9), ErrorCode.corrupt_message),
        (lambda raw: raw.__delitem__(slice(50, None)), ErrorCode.corrupt_message),
    ],
)
def test_bytes_that_are_no_batch(bend: Callable[[bytearray], None], code: ErrorCode) -> None:
    raw = bytearray(batch(b"value"))
    bend(raw)
    with pytest.raises(RequestRefused) as refused:
        list(batches.split(bytes(raw)))
    assert refused.value.code is code
