"""MemoryPool: a byte budget that all workers of a daemon share."""

from __future__ import annotations

from wheeld_client.aio import AsyncTimers
from wheeld_client.timers import Timers
from wheeld_core import _native

PoolBuffer = _native.PoolBuffer


class MemoryPool(_native.Pool):
    """One of the daemon's memory pools, as this worker uses it.

    The daemon makes pools at its start (`wheeld start --pool requests=64M`); all its workers lend
    from the same. What a worker has out returns when it dies, closes or is evicted.

    A lenient pool lends as long as a byte is available, so that one request may go beyond `size`:
    at most `size - 1 + largest` bytes are out, and `available` may be negative. A strict pool never
    has more than `size` out.

    All methods may be called from any thread. Several objects for the same pool are one pool. After
    a fork the child's copy raises `ForkedClient`, or is the pool of the worker that the child
    becomes: see `connect`; buffers stay the parent's.

    Parameters
    ----------
    timers : Timers or AsyncTimers
        The connection to the daemon; the pool works until it closes.
    name : str
        As given to the daemon.

    Raises
    ------
    ValueError
        There is no such pool; the message names those that there are.
    DaemonNotRunning, ClientClosed, ForkedClient

    Attributes
    ----------
    name : str
    size, largest : int
        Bytes of the pool, and of the largest single request.
    strict : bool
    used, available : int
        Bytes that all workers have out, and what is left.
    is_out_of_memory : bool
        Nothing is available.
    outstanding : int
        Bytes that this worker has out.
    depleted_percent : float
        Share of the time since the daemon's start in which the pool was dry, a dry spell that
        still lasts included.
    """

    def __init__(self, timers: Timers | AsyncTimers, name: str) -> None:
        worker = timers.timers if isinstance(timers, AsyncTimers) else timers
        if not isinstance(worker, Timers):
            raise TypeError(f"expected Timers or AsyncTimers: got {type(timers).__name__}")
        worker._check()
        super().__init__(worker, worker._segment("pools"), name)

    def __repr__(self) -> str:
        kind = "strict" if self.strict else "lenient"
        return f"<MemoryPool {self.name!r}, {kind}, {self.size} bytes>"
