"""One worker's loop: schedule what arrives, cancel what is done, receive what timed out.

Time comes in as an argument, as the wheel's own: under a virtual clock a turn is exact.
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from wheeld_client.replay.calendar import Calendar
from wheeld_client.replay.feed import Arrived, Feed
from wheeld_client.replay.histogram import LatenessHistogram
from wheeld_client.replay.payloads import payload_rows, payload_texts
from wheeld_client.replay.window import Window
from wheeld_client.timers.timers import Timers
from wheeld_core.errors import WheelError, WheelFull

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

BATCH: Final = 1 << 14
"""Most requests per call, so that a worker that lags still cancels and receives in between."""
PACE_NS: Final = 1_000_000
"""A worker that has caught up checks again after this time, not at each arrival."""
STRAGGLER_NS: Final = 10_000_000_000
"""How long after its deadline an expiration may come before it counts as lost."""
LINGER_NS: Final = 50_000_000
"""How long after the last deadline a worker keeps polling for timers that it had cancelled."""
FULL_SECONDS: Final = 30.0
"""If the wheel is full for so long while none of our requests ends, the replay fails."""


class PlayListener(Protocol):
    """Is notified of what happens to each request of a worker; requests are numbered 0, 1, 2 ... in
    the order of arrival, and each array has shape (n,)."""

    def scheduled(self, numbers: Ints, before_ns: int, after_ns: int) -> None:
        """The call that scheduled these began and ended."""

    def completed(self, numbers: Ints, won: Flags, at_ns: int) -> None:
        """These were done; `won`: their timers were cancelled, else they had ended before."""

    def received(self, events: npt.NDArray[Any], intact: Flags, at_ns: int) -> None:
        """`poll` returned these."""


class Player:
    """Plays one worker's share.

    Parameters
    ----------
    timers : Timers
        Connected to the daemon.
    feed : Feed
        This worker's requests.
    index, of : int
        This worker plays every `of`-th request, beginning with number `index`; cookies are made
        from both.
    start_ns : int
        When the workload begins, on the wheel's clock.
    flat_out : bool
        Requests arrive when they can be scheduled, so none is behind.
    payloads : bool
        Schedule payloads, too.
    seed : int
        For the payloads.
    journal : PlayListener, optional
        Is notified of what happens.
    """

    def __init__(
        self,
        timers: Timers,
        feed: Feed,
        index: int,
        of: int,
        start_ns: int,
        *,
        flat_out: bool = False,
        payloads: bool = True,
        seed: int = 0,
        journal: PlayListener | None = None,
    ) -> None:
        self._timers, self._feed, self._index, self._of = timers, feed, index, of
        self.start_ns, self.flat_out, self._payloads = start_ns, flat_out, payloads
        self.window, self.calendar = Window(), Calendar()
        self.behind, self.lateness = LatenessHistogram(), LatenessHistogram()
        self.early = self.payload_wrong = self.fulls = 0
        self.full_seconds = 0.0
        self.last_scheduled_ns = start_ns
        self._latest = start_ns
        self._waiting: Arrived | None = None
        self._limit = BATCH
        self._full_since: float | None = None
        self._stuck_since: tuple[float, int] | None = None
        names = timers.expiration_dtype.names or ()
        room = timers.expiration_dtype["payload"].itemsize if "payload" in names else 0
        self._texts = payload_texts(seed, room)
        self._journal = journal

    def turn(self, now_ns: int) -> float | None:
        """Do what is due. Returns the seconds until something is due next; None: everything has
        ended."""
        self._schedule(now_ns)
        self._complete(now_ns)
        self.window.slide()
        if self._full_since is not None:
            return PACE_NS / 1e9
        if self._waiting is not None:
            return 0.0
        due = [self._next_arrival(), self.calendar.next_ns()]
        known = [at for at in due if at is not None]
        if known:
            rest = min(known) - now_ns
            return max(rest, PACE_NS) / 1e9 if rest > 0 else 0.0
        if self._over(now_ns):
            return None
        return PACE_NS * 10 / 1e9

    def _over(self, now_ns: int) -> bool:
        """Has everything ended, and has enough time passed for cancelled timers to show that they
        do not fire?"""
        if len(self.window):
            return now_ns > self._latest + STRAGGLER_NS
        if self._linger_until is None:
            self._linger_until = min(self._latest + LINGER_NS, now_ns + STRAGGLER_NS // 2)
        return now_ns >= self._linger_until

    _linger_until: int | None = None

    def _next_arrival(self) -> int | None:
        at = self._feed.next_ns()
        if at is None:
            return None
        return 0 if self.flat_out else at + self.start_ns

    # -- scheduling -----------------------------------------------------------------------------

    def _schedule(self, now_ns: int) -> None:
        arrived = self._arrivals(now_ns)
        self._waiting = None
        while arrived is not None and len(arrived):
            same = arrived.sizes == arrived.sizes[0]
            group = arrived if same.all() else arrived.pick(same)
            rest = None if same.all() else arrived.pick(~same)
            done = self._schedule_group(group, now_ns)
            if done < len(group):
                left = group.pick(slice(done, None))
                self._waiting = left if rest is None else left.and_then(rest)
                return
            arrived = rest

    def _arrivals(self, now_ns: int) -> Arrived | None:
        if self._waiting is not None:
            return self._waiting
        taken = self._feed.take(now_ns - self.start_ns, BATCH)
        if taken is None:
            return None
        columns, planned = taken
        sizes = columns["payload_bytes"].astype(np.int32)
        if not self._payloads:
            sizes = np.zeros_like(sizes)
        numbers = self.window.arrive(sizes)
        return Arrived(
            numbers, planned + self.start_ns, columns["latency_ns"], columns["timeout_ns"], sizes
        )

    def _schedule_group(self, group: Arrived, now_ns: int) -> int:
        """Schedule requests of one size; returns how many, fewer when the wheel is or was full."""
        done = 0
        while done < len(group):
            if done and self._limit < BATCH:
                return done  # cancel and receive first: that makes room
            part = group.pick(slice(done, done + self._limit))
            cookies = (part.numbers * self._of + self._index).astype(np.uint64)
            before = self._timers.now_ns()
            try:
                ids = self._timers.schedule_many(
                    part.timeout_ns / 1e9, cookies, payloads=self._texts_for(part, cookies)
                )
            except WheelFull:
                self._found_full()
                return done
            after = self._timers.now_ns()
            self._found_room()
            self.window.schedule(part.numbers, ids)
            self._remember(part, after)
            if self._journal:
                self._journal.scheduled(part.numbers, before, after)
            done += len(part)
        return done

    def _remember(self, part: Arrived, at_ns: int) -> None:
        """What was scheduled at `at_ns`: when it is done, how late it was."""
        self.last_scheduled_ns = at_ns
        self._latest = max(self._latest, at_ns + int(part.timeout_ns.max()))
        if not self.flat_out:
            self.behind.add(at_ns - part.arrival_ns)
        completes = part.latency_ns < part.timeout_ns
        self.calendar.add(at_ns + part.latency_ns[completes], part.numbers[completes])

    def _texts_for(self, part: Arrived, cookies: npt.NDArray[np.uint64]) -> Any:
        size = int(part.sizes[0])
        if not size:
            return None
        return payload_rows(self._texts[:, :size], cookies).view(f"V{size}").ravel()

    def _found_full(self) -> None:
        """All of a batch or nothing was scheduled: a smaller one may still fit."""
        self.fulls += 1
        self._limit = max(1, self._limit // 2)
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        ended = self.window.cancelled + self.window.expired
        if self._stuck_since is None or self._stuck_since[1] != ended:
            self._stuck_since = now, ended
        elif now - self._stuck_since[0] > FULL_SECONDS and not len(self.window):
            raise WheelError(
                f"the wheel was full of other programs' timers for {FULL_SECONDS:.0f} s; start "
                "the daemon with a larger --capacity, or use a daemon for the replay alone"
            )

    def _found_room(self) -> None:
        self._limit = min(BATCH, self._limit * 2)
        self._stuck_since = None
        if self._full_since is not None:
            self.full_seconds += time.monotonic() - self._full_since
            self._full_since = None

    # -- ends -----------------------------------------------------------------------------------

    def _complete(self, now_ns: int) -> None:
        """Cancel the timers of the requests that are done."""
        done = self.calendar.take(now_ns)
        if not len(done):
            return
        numbers, ids = self.window.in_flight(done)
        won = self._timers.cancel_many(ids)
        self.window.cancel(numbers, won)
        self.window.late += len(done) - int(won.sum())
        if self._journal:
            cancelled = np.isin(done, numbers[won])
            self._journal.completed(done, cancelled, self._timers.now_ns())

    def receive(self, seconds: float) -> None:
        """Take what timed out; wait for it at most so long."""
        events = self._timers.poll(seconds)
        if not len(events):
            return
        at_ns = self._timers.now_ns()
        cookies = events["cookie"]
        ours = cookies % np.uint64(self._of) == self._index
        numbers = np.where(ours, (cookies // np.uint64(self._of)).astype(np.int64), -1)
        lateness = events["fired"] - events["deadline"]
        self.early += int((lateness < 0).sum())
        self.lateness.add(lateness)
        wrong = self._wrong_payloads(events, numbers)
        self.payload_wrong += int(wrong.sum())
        self.window.deliver(numbers)
        if self._journal:
            self._journal.received(events, ~wrong, at_ns)

    def _wrong_payloads(self, events: npt.NDArray[Any], numbers: Ints) -> Flags:
        """Which events carry other bytes than were scheduled; shape (n,)."""
        known = (numbers >= self.window.base) & (numbers < self.window.end)
        sizes = self.window.sizes_of(numbers)
        wrong: Flags = events["payload_size"] != sizes
        width = min(int(sizes.max()), self._texts.shape[1])
        if width:
            got = np.ascontiguousarray(events["payload"]).view(np.uint8).reshape(len(events), -1)
            differs = got[:, :width] != payload_rows(self._texts[:, :width], events["cookie"])
            if (sizes != width).any():
                differs &= np.arange(width) < sizes[:, None]
            wrong |= differs.any(axis=1)
        return wrong & known
