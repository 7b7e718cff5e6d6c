"""The clock process: the single writer of the wheel.

It is started by the supervisor (`python -m wheeld.clock.process <fd>`), gets its instructions over
that socket, rebuilds the wheel from the slots, and then stays in one native loop. Control messages
are rare: a worker connects or leaves, a virtual clock moves, the daemon stops. When the socket
closes, the supervisor is gone, and so is the clock. It may be killed at any instruction: the next
clock continues its work.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from wheeld.processes import child_main as child
from wheeld.processes.messages import Notice, Order
from wheeld_core import _native, segments
from wheeld_core.control import Message
from wheeld_core.errors import WheelError

READ_ONLY = ("registry",)
_FIFO_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class ClockProcess:
    """Maps the segments, serves control messages, drives the native clock between them."""

    def __init__(self, channel: child.SupervisorChannel) -> None:
        self._channel = channel
        hello = channel.hello()
        self._clock_set = _native.prepare_clock_process()
        child.check_supervisor(hello["supervisor"])
        if hello["pin_cpu"] is not None:
            os.sched_setaffinity(0, {hello["pin_cpu"]})
        self._bells: dict[int, int] = {}
        self._memories: dict[str, _native.Memory] = {
            kind: segments.attach(name, segments.KINDS[kind], writable=kind not in READ_ONLY)
            for kind, name in hello["segments"].items()
        }
        self._bell = os.open(hello["bell"], _FIFO_FLAGS)
        channel.send({"op": Notice.WAITS})  # for the lock alone: the predecessor may end
        try:
            self._lock = child.lock(Path(hello["lock"]), hello["lock_seconds"], "clock")
        except (OSError, WheelError) as error:
            locked_out = isinstance(error, WheelError)
            failed = f"{error}, then start again" if locked_out else str(error)
            channel.send({"op": Notice.READY, "failed": failed, "locked_out": locked_out})
            raise SystemExit(1) from None
        self._growing = [
            segments.open_to_grow(hello["segments"][kind], self._memories[kind])
            for kind in ("wheel", "slots")
        ]
        self._clock = _native.Clock(
            self._memories["wheel"], self._memories["slots"], *self._growing
        )
        self._clock.groups(self._memories["registry"])
        self._clock.keys(self._memories["keys"])
        if "trace" in self._memories:
            self._clock.trace(self._memories["trace"])
        begun = [(worker["row"], self._begin(worker)) for worker in hello["workers"]]
        skipped = [(row, error) for row, error in begun if error is not None]
        self._linked = self._clock.recover()
        if not self._clock.back(hello["slabs"]):
            child.say("/dev/shm is too small for the memory to be reserved; enlarge it")
        held = os.fstat(self._lock)
        ready = {"linked": self._linked, "skipped": skipped}
        channel.send({"op": Notice.READY, **ready, "lock_file": [held.st_dev, held.st_ino]})

    def _begin(self, worker: Message) -> str | None:
        """Serve a worker, a new one or the successor of a kept one; returns a description of any
        damage to its segment. The supervisor, which knows the worker's name, logs it."""
        try:
            if not self._clock.attached(worker["row"]):
                self._attach(worker)
        except (OSError, WheelError) as error:
            return str(error)
        self._clock.presence(worker["row"], worker["present"], worker["groups"])
        return None

    def run(self) -> None:
        """Serve until told to stop, or until the supervisor is gone."""
        self._clock.set_state(1)
        while True:
            reaped = self._clock.run(self._bell, self._channel.fileno(), self._clock_set)
            if reaped is not None:
                self._reaped(reaped)
            elif not self._serve():
                break

    def _serve(self) -> bool:
        """Handle every message that has arrived. False: stop."""
        while self._channel.ready():
            message = self._channel.receive()
            if message is None:
                return False
            if message["op"] == Order.STOP:
                if not message["keep"]:
                    self._stop()
                return False
            if message["op"] == Order.ATTACH:
                self._arrive(message)
            elif message["op"] == Order.DETACH:
                self._detach(message)
            elif message["op"] == Order.PRESENCE and self._clock.attached(message["row"]):
                self._clock.presence(message["row"], message["present"], message["groups"])
            elif message["op"] == Order.ADVANCE:
                self._advance(message)
            # LOOK: it is awake by now, and the next pass looks at all rings
        return True

    def _stop(self) -> None:
        """Orderly end of the daemon: wake all waiting workers, since nothing more will come."""
        self._clock.set_state(2)
        for bell in self._bells.values():
            with contextlib.suppress(BlockingIOError):  # a full FIFO says it already
                os.write(bell, b"\1")

    def _attach(self, message: Message) -> None:
        row = message["row"]
        memory = segments.attach(message["segment"], _native.KIND_WORKER, writable=True)
        bell = os.open(message["bell"], _FIFO_FLAGS)
        try:
            self._clock.attach(row, message["incarnation"], memory, bell, message["groups"])
            if message["keep_ns"] is not None:
                self._clock.keep(row, message["keep_ns"])
        except BaseException:
            os.close(bell)
            raise
        self._bells[row] = bell

    def _arrive(self, message: Message) -> None:
        error = self._begin(message)
        self._channel.send({"op": Notice.ATTACHED, "row": message["row"], "error": error})

    def _detach(self, message: Message) -> None:
        if self._clock.attached(message["row"]):
            self._clock.detach(message["row"], message["leave"])
        else:
            self._channel.send({"op": Notice.REAPED, "row": message["row"], "kept": False})

    def _advance(self, message: Message) -> None:
        while (reaped := self._clock.advance(message["to"])) is not None:
            self._reaped(reaped)
        self._channel.send({"op": Notice.ADVANCED, "to": message["to"]})

    def _reaped(self, row: int) -> None:
        kept = self._clock.attached(row)
        if not kept:
            self._clock.forget(row)
            os.close(self._bells.pop(row))
        self._channel.send({"op": Notice.REAPED, "row": row, "kept": kept})


def main() -> None:
    child.run("clock", lambda channel: ClockProcess(channel).run())


if __name__ == "__main__":
    main()
