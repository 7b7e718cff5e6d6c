"""The broker example's logs: whole after a kill at any step, each record once."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.broker import records, storage
from examples.broker.records import DamagedRecord, Record
from examples.broker.storage import OffsetError, Partition, SequenceError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Partition]:
    """A partition with two followers."""
    log = Partition(tmp_path / "log", followers=2)
    yield log
    log.close()


def fill(log: Partition, count: int, producer: int = 7) -> None:
    """Append records 0, 1, ... of a producer."""
    for sequence in range(count):
        log.append(Record(producer, sequence, b"value %d" % sequence))


def everything(log: Partition) -> list[Record]:
    """All records."""
    return list(records.unpack(log.read(0, log.log_end, 1 << 30)))


# -- records -----------------------------------------------------------------------------------


def test_records_come_back_as_they_were() -> None:
    """Packed one behind the other and unpacked."""
    written = [Record(1, 0, b""), Record(2**63 - 1, 9, b"x" * 1000), Record(0, 2**63, b"\0\xff")]
    assert list(records.unpack(b"".join(map(records.pack, written)))) == written


def test_every_changed_bit_is_noticed() -> None:
    """In the value, the names, the checksum, the length."""
    packed = records.pack(Record(3, 4, b"abc"))
    for bit in range(8 * len(packed)):
        changed = bytearray(packed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecord):
            list(records.unpack(bytes(changed)))


@pytest.mark.parametrize("keep", [1, 10, 24, 26])
def test_cut_record_is_damaged(keep: int) -> None:
    """Half a header, or half a value."""
    with pytest.raises(DamagedRecord, match="byte 0"):
        list(records.unpack(records.pack(Record(3, 4, b"abc"))[:keep]))


# -- append ------------------------------------------------------------------------------------


def test_append_and_read(log: Partition) -> None:
    """Offsets count from 0; what is read is what was written."""
    fill(log, 5)
    assert log.log_end == 5
    assert [record.sequence for record in everything(log)] == [0, 1, 2, 3, 4]
    assert log.size(1, 3) == len(log.read(1, 3, 1 << 20)) == 2 * (24 + 7)
    assert log.size(3, 3) == log.size(4, 3) == 0


def test_reading_ends_at_a_whole_record(log: Partition) -> None:
    """As many as fit, but one at least."""
    fill(log, 5)
    one = log.size(0, 1)
    for most, expected in [(1, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (99 * one, 4)]:
        assert len(list(records.unpack(log.read(1, 5, most)))) == expected
    assert log.read(5, 5, 100) == b""


def test_one_read_is_bounded(log: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records there are, also while a process learns of them."""
    monkeypatch.setattr(storage, "MOST_RECORDS", 3)
    fill(log, 8)
    assert len(list(records.unpack(log.read(1, 8, 1 << 20)))) == 3
    other = Partition(log.directory, 2)
    assert other.append(Record(7, 8, b"")).offset == 8
    other.close()


def test_same_sequence_is_the_same_record(log: Partition) -> None:
    """Also for another process, which has it from the log, and with others in between."""
    fill(log, 3)
    log.append(Record(8, 0, b"other"))
    for one in (log, Partition(log.directory, 2)):
        assert one.append(Record(7, 2, b"value 2")) == (2, True)
        assert one.append(Record(8, 0, b"other")) == (3, True)
    assert log.log_end == 4


@pytest.mark.parametrize("sequence", [0, 1, 4, 99])
def test_sequence_that_is_not_next_is_refused(log: Partition, sequence: int) -> None:
    """Neither a gap nor an old one gets into the log."""
    fill(log, 3)
    with pytest.raises(SequenceError, match=f"got sequence {sequence}, expected 3") as caught:
        log.append(Record(7, sequence, b""))
    assert caught.value.expected == 3
    with pytest.raises(SequenceError, match="expected 0"):
        log.append(Record(99, 1, b""))
    assert log.log_end == 3


# -- a writer that was killed ------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_torn_tail_is_overwritten(
    log: Partition, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer stops after so many of its steps: half a record, a record, and its index entry."""
    fill(log, 3)
    dying = Partition(log.directory, 2)
    write, done = os.pwrite, []

    def stop_after(descriptor: int, data: bytes, position: int) -> int:
        if len(done) + 1 >= steps:
            if steps == 1:
                write(descriptor, bytes(data)[: len(data) // 2], position)
            raise KeyboardInterrupt
        done.append(descriptor)
        return write(descriptor, data, position)

    class Untouched:
        """Words that are not written any more."""

        def __getitem__(self, index: int) -> int:
            return log._words[index]

        def __setitem__(self, index: int, value: int) -> None:
            raise KeyboardInterrupt

    if steps:
        with monkeypatch.context() as patch:
            patch.setattr(storage.os, "pwrite", stop_after)
            if steps == 3:
                patch.setattr(dying, "_words", Untouched())
            with pytest.raises(KeyboardInterrupt):
                dying.append(Record(7, 3, b"never seen, and longer than what comes"))
    assert log.log_end == 3
    assert len(everything(log)) == 3
    assert log.append(Record(8, 0, b"next")) == (3, False)
    assert log.append(Record(7, 3, b"sent again")) == (4, False)
    found = everything(log)
    assert [(one.producer, one.sequence) for one in found[3:]] == [(8, 0), (7, 3)]
    assert found[4].value == b"sent again"


def test_killed_after_publishing_is_found(log: Partition) -> None:
    """The record is in the log, its answer was never sent: the same request gets the answer."""
    fill(log, 3)
    other = Partition(log.directory, 2)
    other.append(Record(7, 3, b"value 3"))
    other.close()
    assert log.append(Record(7, 3, b"value 3")) == (3, True)


@pytest.mark.parametrize("change", ["append", "copy", "follow"])
def test_changes_are_made_under_the_lock(log: Partition, change: str) -> None:
    """Nobody else gets it at the moment at which a word changes."""
    fill(log, 1)
    words, looks = log._words, []

    class Watched:
        """Words that look whether the lock is taken."""

        def __getitem__(self, index: int) -> int:
            return words[index]

        def __setitem__(self, index: int, value: int) -> None:
            lock = (log.directory / "lock").open("rb")
            with lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            looks.append(index)
            words[index] = value

        def close(self) -> None:
            words.close()

    log._words = Watched()  # type: ignore[assignment]
    if change == "append":
        log.append(Record(7, 1, b""))
    elif change == "copy":
        log.copy(1, records.pack(Record(7, 1, b"")))
    else:
        log.follow(0, 1)
    assert len(looks) == 1
    with (log.directory / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


APPENDER = """
import sys
from pathlib import Path
from examples.broker.records import Record
from examples.broker.storage import Partition
log = Partition(Path(sys.argv[1]), 2)
producer, count = int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for sequence in range(count):
    value = b"%d/%d" % (producer, sequence)
    answer = log.append(Record(producer, sequence, value * (sequence % 5)))
    again = log.append(Record(producer, sequence, value * (sequence % 5)))
    assert again == (answer.offset, True), (answer, again)
    print(sequence, answer.offset, flush=True)
"""


def appender(log: Partition, producer: int, count: int) -> subprocess.Popen[str]:
    """A process that appends when it reads a line, and says where."""
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(log.directory), str(producer), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    """Let it append."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_append(log: Partition) -> None:
    """Every record once, where its writer was told, in its producer's order."""
    count = 400
    processes = [appender(log, producer, count) for producer in (1, 2)]
    for process in processes:
        go(process)
    told = {}
    for producer, process in enumerate(processes, 1):
        said, _ = process.communicate()
        assert process.returncode == 0
        for line in said.splitlines():
            sequence, offset = map(int, line.split())
            told[producer, sequence] = offset
    found = everything(log)
    assert len(found) == log.log_end == 2 * count == len(told)
    for offset, record in enumerate(found):
        assert told[record.producer, record.sequence] == offset
        assert record.value == b"%d/%d" % (record.producer, record.sequence) * (record.sequence % 5)


def test_killed_writers_harm_nobody(log: Partition, rng_seed: int) -> None:
    """Writers are killed in the middle; the lock is free at once and the log is whole."""
    rng = random.Random(rng_seed)
    for producer in range(6):
        process = appender(log, producer, 100_000)
        go(process)
        assert process.stdout is not None
        last = -1
        for _ in range(rng.randrange(1, 60)):
            last, offset = map(int, process.stdout.readline().split())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for sequence in range(last + 1):  # each that was told of is there
            assert any(
                (one.producer, one.sequence) == (producer, sequence) for one in everything(log)
            )
        assert everything(log)[offset].producer == producer
        log.append(Record(1000 + producer, 0, b"after the death"))
    found = everything(log)
    assert len(found) == log.log_end
    names = [(one.producer, one.sequence) for one in found]
    assert len(set(names)) == len(names)
    for producer in range(6):
        sequences = [one.sequence for one in found if one.producer == producer]
        assert sequences == list(range(len(sequences)))


# -- replication -------------------------------------------------------------------------------


def test_high_watermark_is_the_lowest(log: Partition) -> None:
    """Of the log's end and all followers; it never goes back."""
    fill(log, 5)
    assert log.high_watermark == 0
    assert log.follow(0, 4)
    assert log.high_watermark == 0
    assert log.follow(1, 2)
    assert (log.high_watermark, log.replicated(0), log.replicated(1)) == (2, 4, 2)
    assert not log.follow(0, 3)
    assert not log.follow(0, 4)
    assert log.replicated(0) == 4
    log.follow(1, 5)
    assert log.high_watermark == 4


def test_nobody_follows(tmp_path: Path) -> None:
    """The high watermark is the log's end."""
    log = Partition(tmp_path)
    fill(log, 2)
    assert log.high_watermark == 2
    log.close()


def test_follower_ahead_of_the_log_is_refused(log: Partition) -> None:
    """It copied another log."""
    fill(log, 2)
    with pytest.raises(OffsetError, match="follower 1 is at 3, the log ends at 2"):
        log.follow(1, 3)
    assert log.replicated(1) == 0


def test_other_number_of_followers_is_refused(log: Partition) -> None:
    """Their words would be taken for each other's."""
    with pytest.raises(ValueError, match="expected 2: it was made for another number"):
        Partition(log.directory, followers=1)


def test_copy_is_the_same_log(log: Partition, tmp_path: Path) -> None:
    """Byte by byte; what comes twice is added once."""
    fill(log, 6)
    copy = Partition(tmp_path / "copy")
    raw = log.read(0, 4, 1 << 20)
    assert copy.copy(0, raw) == 4
    assert copy.copy(0, raw) == 0
    assert copy.copy(2, log.read(2, 6, 1 << 20)) == 2
    assert everything(copy) == everything(log)
    for name in ("records", "index"):
        assert (copy.directory / name).read_bytes() == (log.directory / name).read_bytes()
    copy.close()


def test_copy_takes_no_gap_and_no_damage(log: Partition, tmp_path: Path) -> None:
    """Then nothing of it is added."""
    fill(log, 6)
    copy = Partition(tmp_path / "copy")
    with pytest.raises(OffsetError, match="from 2 on, the log ends at 0"):
        copy.copy(2, log.read(2, 4, 1 << 20))
    with pytest.raises(DamagedRecord):
        copy.copy(0, log.read(0, 4, 1 << 20)[:-1])
    assert copy.log_end == 0
    copy.close()


def test_words_are_what_the_file_says(log: Partition) -> None:
    """Another process sees a word as it was stored."""
    fill(log, 3)
    log.follow(1, 2)
    assert struct.unpack("=3Q", (log.directory / "words").read_bytes()) == (3, 0, 2)
