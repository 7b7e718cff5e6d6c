"""A stand-in for the supervisor: real segments, FIFOs and socket, in threads of the test process.

Its clock is virtual and moved by the test. It can be killed and restarted over the same segments
without starting a process, and it remembers what it was told.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wheeld_core import _native, control, runtime, segments
from wheeld_core.control import Message
from wheeld_core.control.messages import Request, Welcome
from wheeld_core.errors import DaemonBusy
from wheeld_core.packing import STATE_PHASE, Phase
from wheeld_core.views import WheelView, dtype_of, record

MS = 1_000_000


class StandIn:
    """One daemon that serves until `kill` or the end of its `with` block."""

    def __init__(self, base: Path, **config: int) -> None:
        self.directory = base / "standin"
        self.directory.mkdir(mode=0o700)
        self.name = str(self.directory)
        config = {
            "capacity": 1024, "max_workers": 4, "tick_ns": MS, "wheel_bits": 6,
            "virtual_clock": 1, "token": secrets.randbits(48), **config,
        }  # fmt: skip
        self.token = config["token"]
        self.sizes = _native.geometry(**config)
        self._prefix = f"wheeld-t-{os.getpid()}-{secrets.token_hex(4)}-"
        self._memories = {
            kind: segments.create(self._prefix + kind, self.sizes[f"{kind}_bytes"])
            for kind in ("wheel", "slots", "registry")
        }
        _native.create(*self._memories.values(), "test", **config, origin_ns=0)
        self.view = WheelView(self._memories["wheel"])
        self.clock = _native.Clock(self._memories["wheel"], self._memories["slots"])
        workers, slots = config["max_workers"], config["capacity"]
        size, _ = _native.keys_bytes(workers, slots)
        self._memories["keys"] = keys = segments.create(self._prefix + "keys", size)
        _native.create_keys(keys, workers, slots, self.token)
        self.clock.keys(keys)
        self.clock.set_state(1)
        self._bells = {"clock": self._fifo(runtime.CLOCK_FIFO)}
        self.worker_memories: dict[int, mmap.mmap] = {}
        self._incarnations = 0
        self.messages: list[Message] = []
        self.said = threading.Condition()
        self.refuse_resume: str | None = None
        self.silent = False
        self.crowded = 0
        """Requests that it still refuses because it has too many connections."""
        self.leaving = 0
        """Requests after which it still hangs up without an answer, as one that is restarted."""
        self._lock = threading.RLock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.start()

    # -- life and death -------------------------------------------------------------------------

    def start(self) -> None:
        path = self.directory / runtime.CONTROL_SOCKET
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        self._serve(self._accept, listener)

    def kill(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def stop(self) -> None:
        self.clock.set_state(2)
        self.kill()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        for bell in self._bells.values():
            os.close(bell)
        segments.unlink_all(self._prefix)

    # -- what tests ask and do ------------------------------------------------------------------

    def heard(self, op: str) -> list[Message]:
        return [message for message in self.messages if message.get("op") == op]

    def await_message(self, op: str, count: int = 1, timeout: float = 60.0) -> Message:
        with self.said:
            assert self.said.wait_for(lambda: len(self.heard(op)) >= count, timeout), op
        return self.heard(op)[count - 1]

    def advance(self, ms: float) -> None:
        with self._lock:
            target = int(self.view.header["virtual_now"]) + int(ms * MS)
            while (row := self.clock.advance(target)) is not None:
                self.clock.forget(row)
                _native.set_row_state(self._memories["registry"], row, 0)

    def set_row_state(self, row: int, state: int) -> None:
        _native.set_row_state(self._memories["registry"], row, state)

    def name_group(self, index: int, name: str) -> None:
        memory = self._memories["registry"]
        offset = int(record(memory, "registry")["groups_off"])
        entry = record(memory, "group", offset + dtype_of("group").itemsize * index)
        entry["name"] = name.encode()
        entry["used"] = 1

    def worker_header(self, row: int) -> Any:
        return record(self.worker_memories[row], "worker")

    def targets(self) -> list[int]:
        header = record(self._memories["slots"], "slots")
        found = []
        for slot in range(self.view.capacity):
            state = record(self._memories["slots"], "state", int(header["states_off"]) + 8 * slot)
            if STATE_PHASE.of(int(state["state"])) == Phase.ARMED:
                size = dtype_of("slot").itemsize
                offset = int(header["slots_off"]) + size * slot
                found.append(int(record(self._memories["slots"], "slot", offset)["target"]))
        return found

    # -- serving --------------------------------------------------------------------------------

    def _fifo(self, name: str) -> int:
        path = self.directory / name
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def _serve(self, target: Any, end: socket.socket) -> None:
        with self._lock:
            self._sockets.append(end)
            thread = threading.Thread(target=target, args=(end,), daemon=True)
            self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener, suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._serve(self._converse, connection)

    def _converse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                message = control.decode(line)
                with self._lock:
                    left = self.leaving > 0
                    self.leaving -= left
                    answer = None if left else self._answer(message)
                with self.said:
                    self.messages.append(message)
                    self.said.notify_all()
                if left:
                    return
                if answer is not None and not self.silent:
                    connection.sendall(control.encode(answer))

    def _answer(self, message: Message) -> Mapping[str, Any] | None:
        op = message["op"]
        if self.crowded:
            self.crowded -= 1
            return control.failure(DaemonBusy("too many connections to this daemon"))
        if op == Request.HELLO:
            return self._arrive(message)
        if op == Request.ALARM:
            return None
        if op == Request.RESUME and self.refuse_resume is not None:
            return {"ok": False, "kind": "DaemonNotRunning", "error": self.refuse_resume}
        if op == Request.BYE:
            for row in list(self.worker_memories):
                if self.worker_header(row)["goodbye"]:
                    self.clock.detach(row)
                    del self.worker_memories[row]
            self.advance(0)
        return {"ok": True}

    def _arrive(self, message: Message) -> Welcome:
        row = next(r for r in range(self.view.max_workers) if r not in self.worker_memories)
        self._incarnations += 1
        name = f"{self._prefix}worker-{self._incarnations}"
        memory = segments.create(name, self.sizes["worker_bytes"])
        _native.create_worker(memory, self._memories["wheel"], row)
        self.worker_memories[row] = memory
        fifo = runtime.worker_fifo(row)
        if f"worker-{row}" not in self._bells:
            self._bells[f"worker-{row}"] = self._fifo(fifo)
        self.clock.attach(row, self._incarnations, memory, self._bells[f"worker-{row}"])
        fields = record(
            self._memories["registry"],
            "row",
            self.sizes["rows_off"] + dtype_of("row").itemsize * row,
        )
        worker = message["worker"] or f"pid-{self._incarnations}"
        fields["name"], fields["incarnation"] = worker.encode(), self._incarnations
        self.set_row_state(row, 2)
        return {
            "ok": True, "row": row, "incarnation": self._incarnations, "worker": worker,
            "token": self.token, "adopted": False,
            "segments": {"worker": name, **{k: self._prefix + k for k in self._memories}},
            "clock_fifo": runtime.CLOCK_FIFO, "worker_fifo": fifo,
        }  # fmt: skip
