"""The state machine as a stateful processor of Spark: one value and one timer per key.

Time is the batch's, which Spark writes down before it runs a batch: one that is run again after a
death sees the same time and the same rows, and so gives the same output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from wheeld_pipeline.overflow import machine
from wheeld_pipeline.overflow.machine import (
    ACKNOWLEDGED,
    EXPIRED,
    HAND_OUT,
    REFUSED,
    REJECTED,
    WITHDRAW,
    Command,
    Entry,
    Expired,
    HandOut,
    Output,
    Rejected,
    Rules,
    Withdraw,
)

STATE: Final = (
    "phase tinyint, generation bigint, deadline_us bigint, wake_ms bigint, key string, "
    "cookie bigint, payload binary"
)
OUTPUT: Final = (
    "kind string, id binary, generation bigint, deadline_us bigint, fired_us bigint, key string, "
    "cookie bigint, payload binary, text string, reason string"
)
_FIELDS: Final = [field.strip().split()[0] for field in OUTPUT.split(",")]
_OutputRow: Final = Row(*_FIELDS)


class OverflowProcessor(StatefulProcessor):
    """One key's commands, wake-ups and expirations.

    Parameters
    ----------
    rules : Rules
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._state = handle.getValueState("timer", STATE)

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Commands of a key, and what wheels say of it."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        before = self._load()
        entry = before
        done: list[Row] = []
        for row in sorted(rows, key=_order):
            entry, outputs = self._take(entry, row, now_ms, done, key[0])
            done += (_row(key[0], output) for output in outputs)
        self._store(before, entry)
        return iter(done)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """The wake-up of a key."""
        due_ms = expiredTimerInfo.getExpiryTimeInMs()
        before = self._load()
        if before is None or before.wake_ms != due_ms:
            return iter(())
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        entry, outputs = machine.wake(before, now_ms, self._rules)
        self._store(before, entry, rung=True)
        return iter([_row(key[0], output) for output in outputs])

    def close(self) -> None:
        """Nothing is open."""

    def _take(
        self, entry: Entry | None, row: Row, now_ms: int, done: list[Row], place: bytes
    ) -> machine.Step:
        if row.op == ACKNOWLEDGED:
            return machine.acknowledge(entry, row.sequence, row.fired_us, now_ms, self._rules)
        if row.op == REFUSED:
            return machine.refuse(entry, row.sequence, now_ms, self._rules)
        if row.wrong is not None:
            done.append(_bad(place, row))
            return entry, []
        payload = None if row.payload is None else bytes(row.payload)
        deadline_us = row.deadline_us if row.op != machine.CANCEL else 0
        command = Command(row.op, row.sequence, deadline_us, row.key, row.cookie, payload)
        return machine.obey(entry, command, now_ms, self._rules)

    def _load(self) -> Entry | None:
        found = self._state.get()
        return None if found is None else Entry(*found)

    def _store(self, before: Entry | None, after: Entry | None, rung: bool = False) -> None:
        """Keep value and timer in step. `rung`: Spark itself removes the timer that was due."""
        if after == before:
            return
        if after is None:
            self._state.clear()
        else:
            self._state.update(after)
        old = None if before is None or rung else before.wake_ms
        new = None if after is None else after.wake_ms
        if old == new:
            return
        if old is not None:
            self._handle.deleteTimer(old)
        if new is not None:
            self._handle.registerTimer(new)


def _order(row: Row) -> tuple[int, int]:
    """What wheels say first: it happened before anybody could know better."""
    command = row.op not in (ACKNOWLEDGED, REFUSED)
    return (int(command), -1 if row.sequence is None else row.sequence)


def _row(place: bytes, output: Output) -> Row:
    if isinstance(output, HandOut):
        return _OutputRow(HAND_OUT, place, output.generation, output.deadline_us, *([None] * 6))
    if isinstance(output, Withdraw):
        return _OutputRow(WITHDRAW, place, output.generation, *([None] * 7))
    if isinstance(output, Expired):
        entry = output.entry
        told = (entry.generation, entry.deadline_us, output.fired_us, entry.key, entry.cookie)
        return _OutputRow(EXPIRED, place, *told, entry.payload, None, None)
    return _rejection(place, output)


def _rejection(place: bytes, rejected: Rejected) -> Row:
    command = rejected.command
    told = (command.sequence, command.deadline_us, None, command.key, command.cookie)
    return _OutputRow(REJECTED, place, *told, command.payload, command.op, rejected.reason)


def _bad(place: bytes, row: Row) -> Row:
    told = (row.sequence, row.deadline_us, None, row.key, row.cookie)
    return _OutputRow(REJECTED, place, *told, None, row.raw, row.wrong)
