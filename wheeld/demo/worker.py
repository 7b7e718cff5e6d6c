"""A worker process: `python -m wheeld.demo.worker DIRECTORY INDEX WORKERS DAEMON`.

It takes every WORKERS-th request of DIRECTORY/requests.npy, waits for the start word, and then does
in one loop what is due: schedule arrivals, complete (cancel) what is ready, receive what timed out.
It decides nothing about the outcome: its log goes to DIRECTORY/worker-INDEX.npz, and the parent
checks that.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.demo import workload
from wheeld.demo.account import RECEIPT
from wheeld_client import Timers, WheelFull, connect

PACE_NS: Final = 1_000_000
"""A worker that has caught up looks again after so long, not after each of its arrivals: at 50,000
arrivals per second those are 20 us apart, and a system call for each would cost most of a core."""
BATCH: Final = 4096
"""Most arrivals per turn, so that a worker that lags still completes and receives in between."""
STRAGGLER_NS: Final = 5_000_000_000
"""How long after its deadline an expiration may come before it counts as lost."""
LINGER_NS: Final = 50_000_000
"""How long after the last deadline a worker listens for timers that it had cancelled."""

STATE, SCHEDULED, CANCELLED, DELIVERED = range(4)
READY, DONE = 1, 2
BOARD_COLUMNS: Final = 4


def open_board(directory: Path, workers: int) -> Any:
    """The words that parent and workers share.

    Row 0 is written by the parent only (its first word is the start time), row i + 1 by worker i.
    """
    return np.memmap(directory / "board", np.int64, "r+", shape=(workers + 1, BOARD_COLUMNS))


class Runner:
    """Runs one worker's share of the requests.

    Parameters
    ----------
    timers : Timers
        Connected to the daemon.
    requests : numpy.ndarray of REQUEST, shape (n,)
        This worker's, in the order of arrival.
    numbers : numpy.ndarray of uint64, shape (n,)
        Their cookies.
    texts : numpy.ndarray of uint8
        From `payload_texts`.
    board : numpy.ndarray of int64, shape (4,)
        This worker's row, for the progress bar.
    """

    def __init__(
        self,
        timers: Timers,
        requests: npt.NDArray[Any],
        numbers: npt.NDArray[np.uint64],
        texts: npt.NDArray[np.uint8],
        board: npt.NDArray[np.int64],
    ) -> None:
        self.timers, self.requests, self.numbers = timers, requests, numbers
        self.texts, self.board = texts, board
        self.workers_stride = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
        count = len(requests)
        self.arrivals = np.ascontiguousarray(requests["arrival_ns"])
        self.delays = requests["timeout_ns"] / 1e9
        self.sizes = np.ascontiguousarray(requests["payload_bytes"])
        self.one_size = int(self.sizes[0]) if count and np.ptp(self.sizes) == 0 else None
        ready = requests["arrival_ns"] + requests["latency_ns"]
        completing = np.flatnonzero(requests["latency_ns"] < requests["timeout_ns"])
        self.completing = completing[np.argsort(ready[completing], kind="stable")]
        self.completions = ready[self.completing]
        self.ids = np.zeros(count, np.uint64)
        self.timeouts = np.ascontiguousarray(requests["timeout_ns"])
        self.before, self.after, self.deadlines = np.zeros((3, count), np.int64)
        self.cancelled_at = np.zeros(count, np.int64)
        self.won = np.full(count, -1, np.int8)
        self.receipts: list[npt.NDArray[Any]] = []
        self.arrived = self.completed = self.delivered = self.cancelled = self.fulls = 0

    def run(self, start_ns: int) -> None:
        """Run all requests from `start_ns` (monotonic) on, then wait for what is out."""
        while time.monotonic_ns() < start_ns:
            time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
        while self.arrived < len(self.arrivals) or self.completed < len(self.completions):
            now = time.monotonic_ns() - start_ns
            self._schedule(now)
            self._complete(now)
            self._receive(self._pause(start_ns))
        self._receive_rest()

    def _receive_rest(self) -> None:
        """Receive what is out, and listen for timers that were cancelled and fire all the same."""
        give_up = int(self.deadlines[self.won != 1].max(initial=0)) + STRAGGLER_NS
        last = int(self.deadlines.max(initial=0)) + LINGER_NS
        listen = min(last, max(give_up, time.monotonic_ns() + STRAGGLER_NS))
        while (now := time.monotonic_ns()) < listen or (self._outstanding() > 0 and now < give_up):
            self._receive(0.01)

    def _outstanding(self) -> int:
        return self.arrived - self.cancelled - self.delivered

    def _pause(self, start_ns: int) -> float:
        """Seconds until something is due: 0 when it is already, else one pace at least."""
        due = [
            int(times[position])
            for times, position in (
                (self.arrivals, self.arrived),
                (self.completions, self.completed),
            )
            if position < len(times)
        ]
        rest = min(due) + start_ns - time.monotonic_ns() if due else 0
        return max(rest, PACE_NS) / 1e9 if rest > 0 else 0.0

    def _schedule(self, now: int) -> None:
        """Schedule the requests that have arrived."""
        first = self.arrived
        end = min(int(np.searchsorted(self.arrivals, now, "right")), first + BATCH)
        if end == first:
            return
        sizes = [self.one_size] if self.one_size is not None else np.unique(self.sizes[first:end])
        try:
            for size in sizes:
                picked: Any = slice(first, end)
                if self.one_size is None:
                    picked = first + np.flatnonzero(self.sizes[first:end] == size)
                    picked = picked[self.ids[picked] == 0]  # not those before a WheelFull
                self._schedule_batch(picked, int(size))
        except WheelFull:
            self.fulls += 1  # the open loop lags, which the report shows; try again next turn
            return
        self.arrived = end
        self.board[SCHEDULED] = end

    def _schedule_batch(self, picked: Any, size: int) -> None:
        numbers = self.numbers[picked]
        payloads = None
        if size:
            rows = workload.payload_rows(self.texts[:, :size], numbers)
            payloads = np.ascontiguousarray(rows).view(f"V{size}").ravel()
        before = time.monotonic_ns()
        self.ids[picked] = self.timers.schedule_many(
            self.delays[picked], numbers, payloads=payloads
        )
        after = time.monotonic_ns()
        self.before[picked], self.after[picked] = before, after
        self.deadlines[picked] = self.timeouts[picked] + after

    def _complete(self, now: int) -> None:
        """Cancel the timers of the requests that are done."""
        if self.arrived < len(self.arrivals):  # never one that is not scheduled yet
            now = min(now, int(self.arrivals[self.arrived]) - 1)
        end = int(np.searchsorted(self.completions, now, "right"))
        if end <= self.completed:
            return
        which = self.completing[self.completed : end]
        won = self.timers.cancel_many(self.ids[which])
        self.won[which] = won
        self.cancelled_at[which] = time.monotonic_ns()
        self.completed = end
        self.cancelled += int(won.sum())
        self.board[CANCELLED] = self.cancelled

    def _receive(self, wait: float) -> None:
        """Receive what timed out, and compare its payload."""
        events = self.timers.poll(wait)
        if not len(events):
            return
        receipts = np.empty(len(events), RECEIPT)
        receipts["received"] = time.monotonic_ns()
        receipts["number"] = events["cookie"]
        receipts["deadline"] = events["deadline"]
        receipts["fired"] = events["fired"]
        receipts["intact"] = self._intact(events)
        self.receipts.append(receipts)
        self.delivered += len(events)
        self.board[DELIVERED] = self.delivered

    def _intact(self, events: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of the events carry exactly the bytes that were scheduled."""
        index = (events["cookie"] // np.uint64(self.workers_stride)).astype(np.int64)
        known = index < len(self.sizes)
        sizes = np.where(known, self.sizes[np.where(known, index, 0)], -1)
        intact: npt.NDArray[np.bool_] = events["payload_size"] == sizes
        if "payload" in (events.dtype.names or ()):
            got = np.ascontiguousarray(events["payload"]).view(np.uint8).reshape(len(events), -1)
            width = min(self.texts.shape[1], got.shape[1])
            wanted = workload.payload_rows(self.texts, events["cookie"])[:, :width]
            differs = got[:, :width] != wanted
            if self.one_size is None:
                differs &= np.arange(width) < sizes[:, None]
            intact &= ~differs.any(axis=1)
        return intact

    def save(self, path: Path, **facts: Any) -> None:
        """Write the log, whole or not at all."""
        receipts = np.concatenate([np.empty(0, RECEIPT), *self.receipts])
        facts |= {"fulls": self.fulls, "pending_left": self.timers.pending}
        fresh = path.with_suffix(".new.npz")
        np.savez(
            fresh,
            numbers=self.numbers,
            before=self.before,
            after=self.after,
            won=self.won,
            cancelled_at=self.cancelled_at,
            receipts=receipts,
            facts=json.dumps(facts),
        )
        fresh.rename(path)


def _wait_for_start(board: npt.NDArray[np.int64]) -> int:
    parent = os.getppid()
    while not (start_ns := int(board[0, 0])):
        if os.getppid() != parent:
            raise SystemExit("the demo is gone")
        time.sleep(0.002)
    return start_ns


def main(directory: Path, index: int, workers: int, daemon: str) -> None:
    """Run worker `index` of `workers`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C for all
    board = open_board(directory, workers)
    everything = np.load(directory / "requests.npy", mmap_mode="r")
    requests = np.array(everything[index::workers])
    numbers = np.arange(index, len(everything), workers, dtype=np.uint64)
    texts = np.load(directory / "texts.npy")
    with connect(daemon, worker=f"demo-{index}") as timers:
        runner = Runner(timers, requests, numbers, texts, board[index + 1])
        board[index + 1, STATE] = READY
        start_ns = _wait_for_start(board)
        idle = resource.getrusage(resource.RUSAGE_SELF)
        runner.run(start_ns)
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu = used.ru_utime + used.ru_stime - idle.ru_utime - idle.ru_stime
        runner.save(directory / f"worker-{index}.npz", cpu_s=cpu)
    board[index + 1, STATE] = DONE


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
