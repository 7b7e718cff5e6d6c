"""wheeld's client: timers shared by the processes of one host.

from wheeld_client import connect

with connect("default", worker="web-1") as timers:
    timer = timers.schedule(0.2, cookie=42)
    events = timers.poll(timeout=1.0)
"""

from wheeld_client.aio.handle import AsyncTimerHandle
from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.renewal import Reconnection
from wheeld_client.intake.connection import Connection
from wheeld_client.intake.request import Request
from wheeld_client.intake.server import Intake
from wheeld_client.pool.memory_pool import MemoryPool, PoolBuffer
from wheeld_client.purgatory.aio import AsyncPurgatory, OperationCancelled
from wheeld_client.purgatory.deadlines import Deadlines
from wheeld_client.purgatory.purgatory import DelayedOperation, Purgatory
from wheeld_client.purgatory.watermarks import AsyncWatermarks, Watermarks
from wheeld_client.timers.callbacks import TimerHandle
from wheeld_client.timers.observer import Observer, PendingTimers, pending_timers
from wheeld_client.timers.timers import Timers, connect, payload_of
from wheeld_core.errors import (
    ClientClosed,
    DaemonNotRunning,
    ForkedClient,
    InvalidDelay,
    LayoutMismatch,
    PayloadTooLarge,
    RingFull,
    WheelError,
    WheelFull,
    WordsFull,
)

__all__ = [
    "AsyncPurgatory",
    "AsyncTimerHandle",
    "AsyncTimers",
    "AsyncWatermarks",
    "ClientClosed",
    "Connection",
    "DaemonNotRunning",
    "Deadlines",
    "DelayedOperation",
    "ForkedClient",
    "Intake",
    "InvalidDelay",
    "LayoutMismatch",
    "MemoryPool",
    "Observer",
    "OperationCancelled",
    "PayloadTooLarge",
    "PendingTimers",
    "PoolBuffer",
    "Purgatory",
    "Reconnection",
    "Request",
    "RingFull",
    "TimerHandle",
    "Timers",
    "Watermarks",
    "WheelError",
    "WheelFull",
    "WordsFull",
    "connect",
    "payload_of",
    "pending_timers",
]
