"""A purgatory's pair: watch an operation under a key of its own; check the key when it is ready."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import wheeld_client
from bench.cases import Sample, daemon
from bench.purgatory.designs.lazy_purgatory import LazyOperation, LazyPurgatory
from bench.purgatory.designs.old_purgatory import OldOperation, OldPurgatory
from bench.timing import Watch

HOUR = 3600.0
SETTLE_SECONDS = 0.01
"""Seconds for the clock, or a reaper, to finish its work."""


def _fetch(base: Any) -> Any:
    class Fetch(base):  # type: ignore[misc]
        """Completes when it is checked after it was set ready."""

        __slots__ = ("ready",)

        def __init__(self, timeout: float) -> None:
            super().__init__(timeout)
            self.ready = False

        def try_complete(self) -> bool:
            return self.ready and bool(self.force_complete())

        def on_complete(self) -> None:
            """Nothing."""

        def on_expiration(self) -> None:
            """Nothing."""

    return Fetch


def _round(purgatory: Any, fetch: Any, count: int, watch: Watch) -> Sample:
    enter, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
    time.sleep(SETTLE_SECONDS)
    watch.start()
    made = [(fetch(HOUR), f"key-{number}") for number in range(count)]
    making = watch.ns_each(count)
    watch.start()
    for operation, key in made:
        enter(operation, (key,))
    watched = watch.ns_each(count)
    for operation, _ in made:
        operation.ready = True
    time.sleep(SETTLE_SECONDS)
    watch.start()
    for _, key in made:
        check(key)
    checked = watch.ns_each(count)
    return {
        "pair, made too, ns": making + watched + checked,
        "watch, ns": watched,
        "check and complete, ns": checked,
    }


def _rounds(purgatory: Any, base: Any, quick: bool) -> Iterator[Sample]:
    watch, fetch = Watch(), _fetch(base)
    gc.disable()
    try:
        while True:
            yield _round(purgatory, fetch, 500 if quick else 20_000, watch)
    finally:
        gc.enable()
        purgatory.shutdown()


def wheeld(quick: bool) -> Iterator[Sample]:
    """wheeld's, one process."""
    with ExitStack() as stack:
        timers, _ = stack.enter_context(daemon.worker(capacity=1 << 17))
        purgatory = wheeld_client.Purgatory(timers, "bench")
        stack.enter_context(timers.dispatching())
        yield from _rounds(purgatory, wheeld_client.DelayedOperation, quick)


def lazy(quick: bool) -> Iterator[Sample]:
    """A heap with lazy deletion, in Python."""
    return _rounds(LazyPurgatory(), LazyOperation, quick)


def old(quick: bool) -> Iterator[Sample]:
    """Kafka's old design, in Python."""
    return _rounds(OldPurgatory(), OldOperation, quick)
