from typing import Any

from typing_extensions import Buffer

LAYOUT_VERSION: int
FINGERPRINT: str
KIND_WHEEL: int
KIND_SLOTS: int
KIND_REGISTRY: int
KIND_WORKER: int
SLAB_SLOTS: int
GROUPS: int
MAX_CAPACITY: int
MAX_WORKERS: int
MAX_WHEEL_BITS: int
STAGE_OPEN: int
STAGE_TICKED: int
STAGE_WAIT_TICK: int
STAGE_WAIT_EXPIRE: int
STAGE_WAIT_RETURN: int
STAGE_LENT: int
STAGE_EXPIRED: int
STAGE_RETURNED: int
STAGE_RECLAIMED: int
STAGE_HANDED: int
ATTACH_READY: int
ATTACH_TOO_SHORT: int
ATTACH_NOT_READY: int
ATTACH_FOREIGN: int
ATTACH_VERSION: int
ATTACH_FINGERPRINT: int

def layout() -> dict[str, tuple[int, list[tuple[str, str, int, int, int, str, str, str, str]]]]: ...
def geometry(
    *,
    capacity: int,
    max_workers: int,
    tick_ns: int,
    wheel_bits: int,
    payload_bytes: int = 0,
    virtual_clock: int = 0,
    origin_ns: int = 0,
    token: int = 0,
) -> dict[str, int]: ...
def create(wheel: Buffer, slots: Buffer, registry: Buffer, boot_id: str, **config: int) -> None: ...
def create_worker(segment: Buffer, wheel: Buffer, row: int) -> None: ...
def set_row_state(registry: Buffer, row: int, state: int) -> None: ...
def set_daemon_state(wheel: Buffer, state: int) -> None: ...
def name_group(registry: Buffer, group: int, name: str) -> None: ...
def attach_status(segment: Buffer, kind: int) -> tuple[int, int, int]: ...
def prepare_clock_process() -> int: ...
def read_clock(*anything: object) -> int: ...

class Clock:
    def __init__(self, wheel: Buffer, slots: Buffer) -> None: ...
    def attach(
        self, row: int, incarnation: int, segment: Buffer, bell_fd: int, groups: int = 0
    ) -> None: ...
    def detach(self, row: int, leave: int = 1) -> None: ...
    def presence(self, row: int, present: bool, groups: int) -> None: ...
    def attached(self, row: int) -> bool: ...
    def recover(self) -> int: ...
    def forget(self, row: int) -> None: ...
    def run(self, bell_fd: int, control_fd: int, clock_set_fd: int) -> int | None: ...
    def advance(self, now_ns: int) -> int | None: ...
    def check(self) -> int: ...
    def set_state(self, state: int) -> None: ...

class Worker:
    pending: int
    _state: str
    def schedule(
        self,
        delay: float,
        cookie: int = 0,
        *,
        payload: Buffer = b"",
        interval: float | None = None,
        to: str | None = None,
    ) -> int: ...
    def cancel(self, id: int, /) -> bool: ...
    def reschedule(self, id: int, delay: float, /) -> bool: ...
    def poll(self, timeout: float | None = 0.0, max_events: int | None = None) -> Any: ...
    def fileno(self) -> int: ...
    def now_ns(self) -> int: ...
    def _schedule_ns(
        self,
        deadline_ns: int,
        clock: int,
        cookie: int,
        payload: Buffer,
        interval: float | None,
        to: str | None,
        /,
    ) -> int: ...
    def _schedule_batch(
        self,
        delays: Buffer,
        cookies: Buffer | int,
        ids: Buffer,
        payloads: Buffer | None,
        payload_size: int,
        interval: float | None,
        to: str | None,
        /,
    ) -> None: ...
    def _cancel_batch(self, ids: Buffer, won: Buffer, /) -> None: ...
    def _reschedule_batch(self, ids: Buffer, delays: Buffer, moved: Buffer, /) -> None: ...
    def _counters(self) -> dict[str, int]: ...
    def _bind(
        self,
        wheel: Buffer,
        slots: Buffer,
        registry: Buffer,
        worker: Buffer,
        row: int,
        incarnation: int,
        clock_bell: int,
        bell: int,
        daemon: int,
        dtype: Any,
        numpy_empty: Any,
        refork: bool = False,
        /,
    ) -> None: ...
    def _connected(self, fd: int, /) -> None: ...
    def _end(self, reason: str, /) -> None: ...
    def _check(self) -> None: ...
    def _close(self) -> None: ...
