"""Receiver: takes the expirations of a host into its spool, one at a time on each host.

It is the worker to which the rows' timers are addressed. They are detached: an end waits in the
wheel, without a limit, until a receiver has acknowledged it. The daemon gives the receiver's name
to one process at a time, and to the next one when what the last one held was taken from it.

Invariants
 1. Records are in a file of the spool before they are acknowledged, and are read from there once.
 2. A receiver that dies leaves a file of records of which some may not be acknowledged. These are
    known to the next receiver: they have fired and are not done (`Observer.fired`). It acknowledges
    them as they come again, and keeps the file until none is left.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client import NameInUse, Observer, Timers
from wheeld_pipeline.datasource import schema as columns
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.spool import ids_in
from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

    from wheeld_pipeline.datasource.options import Options

_MOST_AT_ONCE: Final = 1 << 24
"""The most expirations that one drain takes, since more may arrive all the time."""
_PAUSE: Final = 0.1
"""Seconds for the clock to hand over what waits."""
_PAUSES: Final = 50
"""So many without any event, and the clock is not well."""


class Receiver:
    """An open receiver; closed by `close`."""

    def __init__(self, host: Host, options: Options, opened: ExitStack) -> None:
        self._host, self._opened = host, opened
        self._timers: Timers = opened.enter_context(host.connected(options, host.journal.receiver))
        self._observer = opened.enter_context(Observer(options.name, options.runtime_dir))
        self._held = host.spool.left_held()
        self._again = self._not_done()

    @classmethod
    def open(cls, journal: Journal, options: Options) -> Receiver | None:
        """None: another process is the receiver.

        Raises
        ------
        PipelineError
            As `Host.connected`.
        """
        with ExitStack() as opened:
            try:
                made = cls(Host(journal), options, opened)
            except PipelineError as error:
                if isinstance(error.__cause__, NameInUse):
                    return None
                raise
            made._opened = opened.pop_all()
            return made

    def _fired(self) -> npt.NDArray[np.uint64]:
        return self._observer.fired(self._timers.worker)

    def _not_done(self) -> npt.NDArray[np.uint64]:
        """The records of dead receivers that come again; forgets the files without any."""
        fired, found = self._fired(), [np.empty(0, np.uint64)]
        for path in list(self._held):
            again = np.intersect1d(ids_in(path), fired)
            if len(again):
                found.append(again)
            else:
                path.unlink()
                self._held.remove(path)
        return np.concatenate(found)

    def drain(self, wait: bool = False) -> int:
        """Receive what has expired; returns how many records went into the spool. With `wait` also
        what the wheel has still to hand over."""
        taken = pauses = 0
        with self._host.named():
            while taken < _MOST_AT_ONCE and pauses < _PAUSES:
                events = self._timers.poll(_PAUSE if wait and pauses else 0.0, hold=True)
                if len(events):
                    pauses = 0
                    taken += self._take(events)
                elif wait and len(self._fired()):
                    pauses += 1
                else:
                    break
        return taken

    def _take(self, events: npt.NDArray[np.void]) -> int:
        fresh = events[~np.isin(events["timer_id"], self._again)]
        held = self._host.spool.hold(self._records(fresh)) if len(fresh) else None
        self._timers.acknowledge(events)
        if held is not None:
            self._host.spool.publish(held)
        return len(fresh)

    def _records(self, events: npt.NDArray[np.void]) -> pa.RecordBatch:
        import pyarrow as pa

        makers: dict[str, Any] = {
            name: columns.numbers(events[name]) for name in ("timer_id", "cookie", "missed")
        }
        for field in ("deadline", "fired"):
            moments = self._timers.dates(events[field]).astype("M8[us]").astype("i8")
            makers[field] = columns.timestamps(moments)
        makers["lateness_ns"] = columns.numbers(events["fired"] - events["deadline"])
        makers["payload"] = columns.payloads(events)
        return pa.RecordBatch.from_pydict(makers)

    def close(self) -> None:
        """Leave what comes to the next receiver."""
        with self._opened:
            self._not_done()
            name = self._timers.worker
            self._host.settle(lambda: not len(self._fired()) and not self._observer.awaits(name))


def receive(journal: Journal, options: Options) -> int | None:
    """Take what has expired on this host into its spool; how many. None: there is a receiver."""
    receiver = Receiver.open(journal, options)
    if receiver is None:
        return None
    try:
        return receiver.drain(wait=True)
    finally:
        receiver.close()
