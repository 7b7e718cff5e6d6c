"""The wheel's side of a shard: collects expirations from its daemon, and schedules timers there.

A task connects as the shard's worker, whose timers stay when it leaves (`on_death="keep"`). So at
most one task per shard is a worker of a daemon at a time, nothing runs between batches, and a shard
that moves to another host uses the daemon of that host.

A timer carries the key's digest and the generation, so that a timer that was handed out twice,
because a batch ran again, can be recognised. Its cookie, a hint, is the row of the key.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client import Timers, WheelFull, connect
from wheeld_pipeline.overflow.batch.step import Heard, Step
from wheeld_pipeline.overflow.shards import Daemon

PAYLOAD: Final = np.dtype([("a", "<u8"), ("b", "<u8"), ("generation", "<i8")])
CONNECT_SECONDS: Final = 5.0
BACKLOG_SECONDS: Final = 0.02


@contextmanager
def visit(daemon: Daemon, worker: str) -> Iterator[Timers]:
    """Connect as the shard's worker, for the block.

    Raises
    ------
    WheelError, OSError, ValueError
        The daemon does not answer, belongs to another host, or has no room for 24 bytes with each
        timer.
    """
    host = socket.gethostname()
    if daemon.host is not None and daemon.host != host:
        raise ValueError(f"its daemon is on {daemon.host} only, and Spark has the shard here")
    with connect(
        daemon.name,
        worker=worker,
        on_death="keep",
        runtime_dir=daemon.runtime_dir,
        timeout=CONNECT_SECONDS,
    ) as timers:
        room = _payload_room(timers)
        if room < PAYLOAD.itemsize:
            raise ValueError(
                f"daemon {daemon.name} holds {room} bytes of payload per timer, expected at least "
                f"{PAYLOAD.itemsize}: wheeld start --payload-bytes {PAYLOAD.itemsize}"
            )
        yield timers


def hear(timers: Timers) -> tuple[Heard, int]:
    """All expirations, and the number of expirations of foreign timers."""
    taken = []
    while len(events := timers.poll(BACKLOG_SECONDS if timers.backlogged else 0.0)):
        taken.append(events.copy())
    if not taken:
        return Heard.nothing(), 0
    events = np.concatenate(taken)
    ours = events["payload_size"] == PAYLOAD.itemsize
    strange, events = int(np.count_nonzero(~ours)), events[ours]
    room = events.dtype["payload"].itemsize
    data = np.ascontiguousarray(events["payload"]).view(np.uint8).reshape(len(events), room)
    said = np.ascontiguousarray(data[:, : PAYLOAD.itemsize]).reshape(-1).view(PAYLOAD)
    fired_us = events["fired"].astype(np.int64) // 1000
    hints = events["cookie"].astype(np.int64)
    return Heard(hints, said["a"], said["b"], said["generation"], fired_us), strange


def hand_out(timers: Timers, step: Step) -> tuple[npt.NDArray[np.uint64], str | None]:
    """Schedule near timers on the wheel, the nearest deadlines first; a full wheel refuses the
    rest.

    Returns
    -------
    (numpy.ndarray of uint64, str or None)
        The id of each timer of `step.handed`, 0 if refused; and the reason.
    """
    order = np.argsort(step.records["deadline_us"][step.handed], kind="stable")
    places = step.handed[order]
    records = step.records[places]
    deadlines_ns = records["deadline_us"] * 1000
    said = np.zeros(len(places), PAYLOAD)
    for name in PAYLOAD.names or ():
        said[name] = records[name]
    ids = np.zeros(len(places), np.uint64)
    at, size, why = 0, len(places), None
    while at < len(places) and size:
        some = slice(at, at + size)
        try:
            ids[some] = timers.schedule_at_many(
                deadlines_ns[some],
                step.rows[places[some]].astype(np.uint64),
                clock="realtime",
                payloads=(said[some].tobytes(), np.arange(len(ids[some]) + 1) * PAYLOAD.itemsize),
            )
            at += size
        except WheelFull as error:
            size, why = size // 2, str(error)
    step.refuse(places[at:])
    given: Any = np.empty(len(ids), np.uint64)
    given[order] = ids
    return given, why


def _payload_room(timers: Timers) -> int:
    names = timers.expiration_dtype.names or ()
    return int(timers.expiration_dtype["payload"].itemsize) if "payload" in names else 0
