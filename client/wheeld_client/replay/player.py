"""One worker's loop: schedule arriving requests, cancel completed ones, receive timeouts.

The wheel's time is an argument: under a virtual clock a turn is exact.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client.replay.account import Account
from wheeld_client.replay.calendar import Calendar
from wheeld_client.replay.feed import Feed, payload_rows, payload_texts
from wheeld_client.replay.histogram import LatenessHistogram
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


class Player:
    """Plays one worker's share: every `of`-th request of the feed, beginning with number `index`;
    cookies are made from both.

    The workload begins at `start_ns` of the wheel's clock. If `flat_out`, requests arrive when they
    can be scheduled, so none is behind. `seed` is for the `payloads`, if they are scheduled.
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
    ) -> None:
        self._timers, self._feed, self._index, self._of = timers, feed, index, of
        self.start_ns, self.flat_out, self._payloads = start_ns, flat_out, payloads
        self.account, self.calendar = Account(), Calendar()
        self.behind, self.lateness = LatenessHistogram(), LatenessHistogram()
        self.receipt = LatenessHistogram()
        self.late = self.fulls = 0
        self._full_seconds = 0.0
        self._last_scheduled_ns = self._latest = start_ns
        self._waiting: npt.NDArray[Any] | None = None
        self._limit = BATCH
        self._full_since: float | None = None
        self._stuck_since: tuple[float, int] | None = None
        names = timers.expiration_dtype.names or ()
        room = timers.expiration_dtype["payload"].itemsize if "payload" in names else 0
        self._texts = payload_texts(seed, room)

    def report(self) -> dict[str, Any]:
        """The report of a worker for `add_up`, without `cpu_s`: plain values."""
        account = self.account
        counters = self._timers.stats().items()
        counts = ("scheduled", "cancelled", "expired", "doubled", "strangers")
        return {
            **{name: getattr(account, name) for name in counts},
            **account.faults,
            "late": self.late,
            "lost": len(account),
            "left_pending": self._timers.pending,
            "peak_pending": account.peak,
            "wheel_full": self.fulls,
            "wheel_full_s": self._full_seconds,
            "lasted_ns": self._last_scheduled_ns - self.start_ns,
            "behind": self.behind.as_json(),
            "lateness": self.lateness.as_json(),
            "receipt": self.receipt.as_json(),
            "counters": {name: count for name, count in counters if isinstance(count, int)},
        }

    def turn(self, now_ns: int) -> float | None:
        """Do everything that is due. Returns the seconds until something is due next; None:
        everything has ended."""
        self._schedule(now_ns)
        self._complete(now_ns)
        self.account.slide()
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
        """Whether everything has ended, and cancelled timers have had enough time to show that they
        do not fire."""
        if len(self.account):
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
            same = arrived["payload_bytes"] == arrived["payload_bytes"][0]
            group, rest = arrived[same], arrived[~same]
            done = self._schedule_group(group)
            if done < len(group):
                self._waiting = np.concatenate([group[done:], rest])
                return
            arrived = rest

    def _arrivals(self, now_ns: int) -> npt.NDArray[Any] | None:
        if self._waiting is not None:
            return self._waiting
        taken = self._feed.take(now_ns - self.start_ns, BATCH)
        if taken is None:
            return None
        if not self._payloads:
            taken["payload_bytes"] = 0
        taken["number"] = self.account.arrive(taken["payload_bytes"])
        taken["arrival_ns"] += self.start_ns
        return taken

    def _schedule_group(self, group: npt.NDArray[Any]) -> int:
        """Schedule requests of one size; returns how many. These are fewer when the wheel is or was
        full."""
        done = 0
        while done < len(group):
            if done and self._limit < BATCH:
                return done  # cancel and receive first: that makes room
            part = group[done : done + self._limit]
            cookies = (part["number"] * self._of + self._index).astype(np.uint64)
            before = self._timers.now_ns()
            try:
                ids = self._timers.schedule_many(
                    part["timeout_ns"] / 1e9, cookies, payloads=self._texts_for(part, cookies)
                )
            except WheelFull:
                self._found_full()
                return done
            self._found_room()
            self._remember(part, ids, before, self._timers.now_ns())
            done += len(part)
        return done

    def _remember(
        self, part: npt.NDArray[Any], ids: npt.NDArray[np.uint64], before: int, after: int
    ) -> None:
        """Note requests that a call from `before` to `after` scheduled."""
        # the wheel takes seconds and cuts to whole ns, as this does
        timeouts = (part["timeout_ns"] / 1e9 * 1e9).astype(np.int64)
        self.account.schedule(part["number"], ids, before + timeouts, after + timeouts)
        self._last_scheduled_ns = after
        self._latest = max(self._latest, after + int(timeouts.max()))
        if not self.flat_out:
            self.behind.add(after - part["arrival_ns"])
        completes = part[part["latency_ns"] < part["timeout_ns"]]
        self.calendar.add(after + completes["latency_ns"], completes["number"])

    def _texts_for(self, part: npt.NDArray[Any], cookies: npt.NDArray[np.uint64]) -> Any:
        size = int(part["payload_bytes"][0])
        if not size:
            return None
        return payload_rows(self._texts[:, :size], cookies).view(f"V{size}").ravel()

    def _found_full(self) -> None:
        """A batch is scheduled as a whole or not at all, so a smaller one may still fit."""
        self.fulls += 1
        self._limit = max(1, self._limit // 2)
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        ended = self.account.cancelled + self.account.expired
        if self._stuck_since is None or self._stuck_since[1] != ended:
            self._stuck_since = now, ended
        elif now - self._stuck_since[0] > FULL_SECONDS and not len(self.account):
            raise WheelError(
                f"the wheel was full of other programs' timers for {FULL_SECONDS:.0f} s; start "
                "the daemon with a larger --capacity, or use a daemon for the replay alone"
            )

    def _found_room(self) -> None:
        self._limit = min(BATCH, self._limit * 2)
        self._stuck_since = None
        if self._full_since is not None:
            self._full_seconds += time.monotonic() - self._full_since
            self._full_since = None

    # -- ends -----------------------------------------------------------------------------------

    def _complete(self, now_ns: int) -> None:
        done = self.calendar.take(now_ns)
        if not len(done):
            return
        numbers, ids = self.account.in_flight(done)
        won = self._timers.cancel_many(ids)
        self.account.cancel(numbers, won)
        self.late += len(done) - int(won.sum())

    def receive(self, seconds: float) -> None:
        """Receive timeouts; wait for them at most `seconds`."""
        events = self._timers.poll(seconds)
        if not len(events):
            return
        received = np.full(len(events), self._timers.now_ns())
        cookies = events["cookie"]
        ours = cookies % np.uint64(self._of) == self._index
        numbers = np.where(ours, (cookies // np.uint64(self._of)).astype(np.int64), -1)
        self.lateness.add(events["fired"] - events["deadline"])
        self.receipt.add(received - events["deadline"])
        self.account.deliver(
            numbers,
            id=events["timer_id"],
            deadline=events["deadline"],
            fired=events["fired"],
            received=received,
            size=np.where(self._differs(events, numbers), -1, events["payload_size"]),
        )

    def _differs(self, events: npt.NDArray[Any], numbers: Ints) -> Flags:
        """Which events carry other bytes than scheduled; shape (n,)."""
        sizes = self.account.sizes_of(numbers)
        width = min(int(sizes.max()), self._texts.shape[1])
        if not width:
            return np.zeros(len(events), bool)
        got = np.ascontiguousarray(events["payload"]).view(np.uint8).reshape(len(events), -1)
        differs = got[:, :width] != payload_rows(self._texts[:, :width], events["cookie"])
        if (sizes != width).any():
            differs &= np.arange(width) < sizes[:, None]
        found: Flags = differs.any(axis=1)
        return found
