"""wheeld's client: timers shared by the processes of one host.

from wheeld_client import connect

with connect("default", worker="web-1") as timers:
    timer = timers.schedule(0.2, cookie=42)
    events = timers.poll(timeout=1.0)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wheeld_client.connection.reconnection import Reconnection
from wheeld_client.timers.callbacks import TimerHandle
from wheeld_client.timers.timers import Timers, connect, payload_of
from wheeld_core.errors import (
    ClientClosed,
    DaemonNotRunning,
    DetachedFull,
    ForkedClient,
    InvalidDelay,
    KeyInUse,
    KeysFull,
    LayoutMismatch,
    LeaseLost,
    NameInUse,
    PayloadHeapFull,
    PayloadTooLarge,
    RingFull,
    WheelError,
    WheelFull,
    WordsFull,
    WorkersFull,
)
from wheeld_core.timer_record import TimerRecord

if TYPE_CHECKING:
    from wheeld_client.aio.handle import AsyncTimerHandle
    from wheeld_client.aio.timers import AsyncTimers
    from wheeld_client.connection.options import ConnectKeywords as ConnectKeywords  # of signatures
    from wheeld_client.intake.connection import Connection
    from wheeld_client.intake.request import Request
    from wheeld_client.intake.server import Intake
    from wheeld_client.jobs.board import JobBoard, JobState
    from wheeld_client.jobs.calendars import CronError
    from wheeld_client.jobs.jobs import Jobs
    from wheeld_client.leases.lease import AsyncLease, Lease
    from wheeld_client.leases.semaphore import AsyncSemaphore, Semaphore
    from wheeld_client.limits.rate_limit import AsyncRateLimit, RateLimit
    from wheeld_client.pool.memory_pool import MemoryPool, PoolBuffer
    from wheeld_client.purgatory.aio import AsyncPurgatory, OperationCancelled
    from wheeld_client.purgatory.deadlines import Deadlines
    from wheeld_client.purgatory.purgatory import DelayedOperation, Purgatory
    from wheeld_client.purgatory.watermarks import AsyncWatermarks, Watermarks
    from wheeld_client.timers.observer import Observer, PendingTimers, pending_timers

__all__ = [
    "AsyncLease",
    "AsyncPurgatory",
    "AsyncRateLimit",
    "AsyncSemaphore",
    "AsyncTimerHandle",
    "AsyncTimers",
    "AsyncWatermarks",
    "ClientClosed",
    "Connection",
    "CronError",
    "DaemonNotRunning",
    "Deadlines",
    "DelayedOperation",
    "DetachedFull",
    "ForkedClient",
    "Intake",
    "InvalidDelay",
    "JobBoard",
    "JobState",
    "Jobs",
    "KeyInUse",
    "KeysFull",
    "LayoutMismatch",
    "Lease",
    "LeaseLost",
    "MemoryPool",
    "NameInUse",
    "Observer",
    "OperationCancelled",
    "PayloadHeapFull",
    "PayloadTooLarge",
    "PendingTimers",
    "PoolBuffer",
    "Purgatory",
    "RateLimit",
    "Reconnection",
    "Request",
    "RingFull",
    "Semaphore",
    "TimerHandle",
    "TimerRecord",
    "Timers",
    "Watermarks",
    "WheelError",
    "WheelFull",
    "WordsFull",
    "WorkersFull",
    "connect",
    "payload_of",
    "pending_timers",
]

_HOMES = {
    "AsyncTimerHandle": "aio.handle",
    "AsyncTimers": "aio.timers",
    "Connection": "intake.connection",
    "Request": "intake.request",
    "Intake": "intake.server",
    "AsyncRateLimit": "limits.rate_limit",
    "RateLimit": "limits.rate_limit",
    "AsyncLease": "leases.lease",
    "Lease": "leases.lease",
    "AsyncSemaphore": "leases.semaphore",
    "Semaphore": "leases.semaphore",
    "CronError": "jobs.calendars",
    "JobBoard": "jobs.board",
    "JobState": "jobs.board",
    "Jobs": "jobs.jobs",
    "MemoryPool": "pool.memory_pool",
    "PoolBuffer": "pool.memory_pool",
    "AsyncPurgatory": "purgatory.aio",
    "OperationCancelled": "purgatory.aio",
    "Deadlines": "purgatory.deadlines",
    "DelayedOperation": "purgatory.purgatory",
    "Purgatory": "purgatory.purgatory",
    "AsyncWatermarks": "purgatory.watermarks",
    "Watermarks": "purgatory.watermarks",
    "Observer": "timers.observer",
    "PendingTimers": "timers.observer",
    "pending_timers": "timers.observer",
}
"""Loaded at first use: a program without an event loop need not load asyncio."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"wheeld_client.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
