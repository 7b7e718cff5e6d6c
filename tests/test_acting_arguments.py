"""Arguments with code of their own: it may close, fork or call in the middle of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from local_wheel import LocalTimers, LocalWheel
from purgatory_ops import Op
from wheeld_client import ClientClosed, DelayedOperation, Purgatory


@pytest.fixture
def wheel() -> Iterator[LocalWheel]:
    """A wheel under virtual time."""
    with LocalWheel(payload_bytes=8) as wheel:
        yield wheel


@pytest.fixture
def timers(wheel: LocalWheel) -> LocalTimers:
    """A worker."""
    return wheel.worker(0)


@pytest.fixture
def purgatory(timers: LocalTimers) -> Purgatory:
    """Where its operations wait."""
    return Purgatory(timers, "produce")


class Acting(int):
    """An int that does something when it is read as a key, and as a number of seconds."""

    does: Callable[[], object]

    def __int__(self) -> int:
        self.does()
        return 5

    def __float__(self) -> float:
        self.does()
        return 5.0


@pytest.mark.parametrize("end", ["close", "shutdown"])
@pytest.mark.parametrize("call", ["watch", "check", "cancel"])
def test_key_that_ends_the_purgatory(
    purgatory: Purgatory, timers: LocalTimers, call: str, end: str
) -> None:
    """What a key's own code does comes first: the call meets what is closed then, as any other."""
    op = Op(1.0)
    purgatory.try_complete_else_watch(Op(1.0), [5])
    key = Acting(5)
    key.does = getattr(timers if end == "close" else purgatory, end)
    calls: dict[str, Callable[[], object]] = {
        "watch": lambda: purgatory.try_complete_else_watch(op, [key]),
        "check": lambda: purgatory.check_and_complete(key),
        "cancel": lambda: purgatory.cancel_for_key(key),
    }
    with pytest.raises(ClientClosed):
        calls[call]()
    assert (op.state, op.tries) == ("new", 0)


def test_timeout_is_read_once() -> None:
    """A timeout of a type of its own."""
    seen: list[int] = []

    class Timeout:
        def __float__(self) -> float:
            seen.append(1)
            return float(len(seen))

    assert DelayedOperation(Timeout()).timeout == 1.0  # type: ignore[arg-type]
    assert seen == [1]


def test_timeout_that_has_the_operation_watched(purgatory: Purgatory) -> None:
    """What is watched is not made anew under it."""
    op = Op(1.0)

    class Timeout:
        def __float__(self) -> float:
            purgatory.try_complete_else_watch(op, ["k"])
            return 2.0

    with pytest.raises(ValueError, match="in a purgatory already"):
        DelayedOperation.__init__(op, Timeout())  # type: ignore[arg-type]
    assert (op.timeout, op.state) == (1.0, "waiting")
