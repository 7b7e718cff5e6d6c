"""The wheels' side: what a task does with its shard's daemon, once per batch.

It connects as the shard's worker, whose timers stay when it leaves (`on_death="keep"`), collects
what has fired, hands out what is near, and leaves. So at most one task per shard is a daemon's
worker at a time, nothing runs between batches, and a shard that moves to another host takes that
host's daemon.

A handed-out timer carries the key's digest and the generation in its payload: who has it twice,
because a batch was run again, can tell.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wheeld_client import Timers, WheelError, connect, payload_of, pending_timers
from wheeld_pipeline.overflow.machine import (
    ACKNOWLEDGED,
    EXPIRED,
    HAND_OUT,
    REFUSED,
    REJECTED,
    WITHDRAW,
)
from wheeld_pipeline.overflow.shards import Daemon, ShardMap

if TYPE_CHECKING:
    import pyarrow as pa

PAYLOAD: Final = struct.Struct("<16sq")
"""Digest of the key, generation."""
SAID: Final = "op string, id binary, sequence bigint, fired_us bigint, text string"
SUMMARY: Final = "summary"
CONNECT_SECONDS: Final = 5.0
COLUMNS: Final = ("kind", "id", "generation", "deadline_us", "fired_us")


class Errand(NamedTuple):
    """What each task has to know."""

    job: str
    shards: ShardMap
    busy: frozenset[int] | None
    """Shards whose daemon may have something to say; None: all."""

    def worker(self, shard: int) -> str:
        """Name of a shard's worker."""
        return f"overflow-{self.job[:8]}-{shard}"


class Handed(NamedTuple):
    """Of one row for the wheel."""

    place: bytes
    generation: int
    deadline_us: int


def tend(errand: Errand) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` runs over the output of the state: rows of `SAID`, a summary last."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        visit = Visit(errand, context.partitionId())
        for batch in batches:
            visit.take(batch)
        visit.go()
        yield visit.said()

    return run


class Visit:
    """One shard's turn.

    Parameters
    ----------
    errand : Errand
    shard : int
    """

    def __init__(self, errand: Errand, shard: int) -> None:
        self._errand = errand
        self._shard = shard
        self._host = socket.gethostname()
        self._hand_outs: list[Handed] = []
        self._withdrawals: list[tuple[bytes, int]] = []
        self._late_us: list[int] = []
        self._rows: list[tuple[str, bytes | None, int | None, int | None, str | None]] = []
        self._summary: dict[str, Any] = dict.fromkeys(
            ("handed", "refused", "fired", "strange", "withdrawn", EXPIRED, REJECTED), 0
        )
        self._summary |= {"shard": shard, "host": self._host, "pending": 0, "trouble": None}

    def take(self, batch: pa.RecordBatch) -> None:
        """Note what the rows want of this shard's wheel."""
        for kind, place, generation, deadline_us, fired_us in zip(
            *(batch.column(name).to_pylist() for name in COLUMNS), strict=True
        ):
            if kind == HAND_OUT:
                self._hand_outs.append(Handed(place, generation, deadline_us))
            elif kind == WITHDRAW:
                self._withdrawals.append((place, generation))
            else:
                self._summary[kind] += 1
                if kind == EXPIRED:
                    self._late_us.append(fired_us - deadline_us)

    def go(self) -> None:
        """Connect, collect, hand out, leave. What did not work is refused, with its reason."""
        busy = self._errand.busy is None or self._shard in self._errand.busy
        if not (busy or self._hand_outs):
            return
        waiting = iter(self._hand_outs)
        try:
            daemon = self._errand.shards.daemons[self._shard]
            self._check_host(daemon)
            with self._connect(daemon) as timers:
                self._summary["pending"] = timers.pending
                self._collect(timers)
                self._withdraw(timers, daemon)
                for handed in waiting:
                    try:
                        self._hand_out(timers, handed)
                    except BaseException:
                        self._refuse(handed)
                        raise
        except (WheelError, OSError, ValueError) as error:
            self._summary["trouble"] = f"shard {self._shard} on {self._host}: {error}"
            self._summary["pending"] = None  # unknown: come again
            for handed in waiting:
                self._refuse(handed)

    def said(self) -> pa.RecordBatch:
        """The rows, and what was done as JSON."""
        import pyarrow as pa

        self._summary["late_us"] = _digest(self._late_us)
        self._rows.append((SUMMARY, None, None, None, json.dumps(self._summary)))
        schema = pa.schema(
            [
                ("op", pa.string()),
                ("id", pa.binary()),
                ("sequence", pa.int64()),
                ("fired_us", pa.int64()),
                ("text", pa.string()),
            ]
        )
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*self._rows, strict=True), schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _check_host(self, daemon: Daemon) -> None:
        if daemon.host is not None and daemon.host != self._host:
            raise ValueError(f"its daemon is on {daemon.host} only, and Spark has the shard here")

    def _connect(self, daemon: Daemon) -> Timers:
        timers = connect(
            daemon.name,
            worker=self._errand.worker(self._shard),
            on_death="keep",
            runtime_dir=daemon.runtime_dir,
            timeout=CONNECT_SECONDS,
        )
        room = _payload_room(timers)
        if room < PAYLOAD.size:
            timers.close()
            raise ValueError(
                f"daemon {daemon.name} holds {room} bytes of payload per timer, expected at least "
                f"{PAYLOAD.size}: wheeld start --payload-bytes {PAYLOAD.size}"
            )
        return timers

    def _collect(self, timers: Timers) -> None:
        while len(events := timers.poll()):
            for event in events:
                self._note(payload_of(event), int(event["fired"]))

    def _note(self, payload: bytes, fired_ns: int) -> None:
        if len(payload) != PAYLOAD.size:
            self._summary["strange"] += 1
            return
        place, generation = PAYLOAD.unpack(payload)
        self._summary["fired"] += 1
        self._rows.append((ACKNOWLEDGED, place, generation, fired_ns // 1000, None))

    def _hand_out(self, timers: Timers, handed: Handed) -> None:
        # A float of today's seconds is a quarter of a microsecond off at most: never early.
        when = (handed.deadline_us + 1) / 1e6
        payload = PAYLOAD.pack(handed.place, handed.generation)
        timers.schedule_at(when, handed.generation & 2**64 - 1, clock="realtime", payload=payload)
        self._summary["handed"] += 1

    def _refuse(self, handed: Handed) -> None:
        self._summary["refused"] += 1
        self._rows.append((REFUSED, handed.place, handed.generation, None, None))

    def _withdraw(self, timers: Timers, daemon: Daemon) -> None:
        """Best effort: the state has forgotten these already, and what fires of them is ignored."""
        if not self._withdrawals:
            return
        unwanted = {PAYLOAD.pack(*handed) for handed in self._withdrawals}
        found = pending_timers(daemon.name, daemon.runtime_dir)
        mine = [row for row, name in found.workers.items() if name == timers.worker]
        ours = found.timers[np.isin(found.timers["owner"], mine)]
        hits = [payload.tobytes()[: PAYLOAD.size] in unwanted for payload in ours["payload"]]
        self._summary["withdrawn"] = int(
            timers.cancel_many(ours["timer_id"][np.array(hits, bool)]).sum()
        )


def _payload_room(timers: Timers) -> int:
    names = timers.expiration_dtype.names or ()
    return int(timers.expiration_dtype["payload"].itemsize) if "payload" in names else 0


def _digest(late_us: list[int]) -> dict[str, int] | None:
    """What the progress line says of lateness."""
    if not late_us:
        return None
    ordered = sorted(late_us)
    return {"p50": ordered[len(ordered) // 2], "max": ordered[-1]}
