"""A purgatory in plain Python: the same algorithm, lists searched from end to end, nothing shared.

`tests/purgatory/test_purgatory_machine.py` drives it beside the real one with the same
calls. The acts of completed operations are in their `Spec`, which both sides run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from wheel_oracle import seconds_to_ns

TICK = 1000
"""Of the wheel, ns: so fine that no two operations fall due in one."""


@dataclass
class Spec:
    """One operation, for both sides."""

    id: int
    worker: int
    keys: list[Any]
    timeout: float | None
    ready: bool = False
    fails: bool = False
    action: tuple[str, Any] | None = None
    """The acts of on_complete: ("check", key), ("cancel", key), ("force", id), ("watch", Spec) or
    ("raise", None); in its own worker."""


class World(Protocol):
    def watch(self, spec: Spec) -> bool: ...
    def check(self, worker: int, key: Any) -> int: ...
    def cancel(self, worker: int, key: Any) -> list[int]: ...
    def force(self, id: int) -> bool: ...


def act(world: World, spec: Spec) -> None:
    if spec.action is None:
        return
    what, of = spec.action
    if what == "check":
        world.check(spec.worker, of)
    elif what == "cancel":
        world.cancel(spec.worker, of)
    elif what == "force":
        world.force(of)
    elif what == "watch":
        world.watch(of)
    else:
        raise LookupError(what)


def raise_all(errors: list[Exception]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several operations raised", errors)


@dataclass(eq=False)
class ModelOperation:
    """Beside a real one."""

    spec: Spec
    state: str = "new"
    due: int | None = None
    """When its timer fires, ns; None: it has none."""
    held: bool = False
    """Is it a purgatory's, and so counted?"""


@dataclass
class ModelPurgatory:
    links: dict[Any, list[ModelOperation]] = field(default_factory=dict)
    waiting: list[ModelOperation] = field(default_factory=list)
    marked: set[Any] = field(default_factory=set)
    """Keys that were checked elsewhere, while something was watched under them."""
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("completed", "expired", "cancelled"), 0)
    )

    def unlink(self, operation: ModelOperation, key: Any) -> None:
        self.links[key].remove(operation)
        if not self.links[key]:
            del self.links[key]

    def unlink_everywhere(self, operation: ModelOperation) -> None:
        for key in list(self.links):
            if operation in self.links[key]:
                self.unlink(operation, key)

    def walk(self, key: Any) -> list[ModelOperation]:
        return list(self.links.get(key, ()))


class Model:
    def __init__(self, workers: int, buckets: dict[Any, int]) -> None:
        self.now = 0
        self.buckets = buckets
        self.places = [ModelPurgatory() for _ in range(workers)]
        self.operations: dict[int, ModelOperation] = {}
        self.log: list[tuple[Any, ...]] = []
        self.line: list[tuple[ModelOperation, bool]] = []

    # -- one operation --------------------------------------------------------------------------

    def leave(self, operation: ModelOperation, state: str) -> None:
        place = self.places[operation.spec.worker]
        waited, operation.state = operation.state == "waiting", state
        if waited:
            place.waiting.remove(operation)
            place.unlink_everywhere(operation)

    def complete(self, operation: ModelOperation, expired: bool = False) -> bool:
        if operation.state in ("completed", "cancelled"):
            return False
        self.leave(operation, "completed")
        if operation.held:
            self.places[operation.spec.worker].counts["expired" if expired else "completed"] += 1
        self.line.append((operation, expired))
        if len(self.line) == 1:  # else a callback completes it: its own run after that one's
            while self.line:
                self.settle(*self.line[0])
                self.line.pop(0)
        return True

    def settle(self, operation: ModelOperation, expired: bool) -> None:
        self.log.append(("complete", operation.spec.id))
        try:
            act(self, operation.spec)
        except Exception as error:
            self.report(operation, error)
        if expired:
            self.log.append(("expire", operation.spec.id))

    def report(self, operation: ModelOperation, error: Exception) -> None:
        self.log.append(("reported", operation.spec.id, type(error).__name__))

    def ask(self, operation: ModelOperation) -> bool:
        self.log.append(("try", operation.spec.id))
        if operation.spec.fails:
            raise ZeroDivisionError
        return operation.spec.ready and self.complete(operation)

    def try_all(
        self, walk: Iterable[ModelOperation], failed: Callable[[ModelOperation, Exception], None]
    ) -> int:
        completed = 0
        for operation in walk:
            if operation.state != "waiting":
                continue
            try:
                completed += self.ask(operation)
            except Exception as error:
                failed(operation, error)
        return completed

    # -- calls ----------------------------------------------------------------------------------

    def watch(self, spec: Spec) -> bool:
        place = self.places[spec.worker]
        operation = self.operations.setdefault(spec.id, ModelOperation(spec))
        if operation.state == "completed":
            return False
        if operation.state != "new":
            raise ValueError
        operation.held = True
        try:
            if self.ask(operation):
                return True
        finally:
            operation.held = operation.state != "new"
        operation.held = True
        for key in dict.fromkeys(spec.keys):
            place.links.setdefault(key, []).append(operation)
        operation.state = "waiting"
        place.waiting.append(operation)
        try:
            done = self.ask(operation)
        except Exception:
            place.waiting.remove(operation)
            place.unlink_everywhere(operation)
            operation.state, operation.held = "new", False
            raise
        if operation.state == "waiting" and spec.timeout is not None:
            due = self.now + seconds_to_ns(spec.timeout)
            operation.due = -(-due // TICK) * TICK
        return done

    def check(self, worker: int, key: Any) -> int:
        for number, place in enumerate(self.places):
            if number != worker and key in place.links:
                place.marked.add(key)
        errors: list[Exception] = []
        walk = self.places[worker].walk(key)
        completed = self.try_all(walk, lambda _, error: errors.append(error))
        raise_all(errors)
        return completed

    def cancel(self, worker: int, key: Any) -> list[int]:
        return self.cancel_all(self.places[worker], self.places[worker].walk(key))

    def cancel_all(self, place: ModelPurgatory, walk: list[ModelOperation]) -> list[int]:
        for operation in walk:
            self.leave(operation, "cancelled")
            place.counts["cancelled"] += 1
        return [operation.spec.id for operation in walk]

    def force(self, id: int) -> bool:
        return id in self.operations and self.complete(self.operations[id])

    def renew(self, worker: int) -> list[int]:
        place = self.places[worker]
        left = self.cancel_all(place, list(place.waiting))
        marked = place.marked  # the worker's, not the purgatory's
        self.places[worker] = ModelPurgatory(marked=marked)
        return left

    def dispatch(self, worker: int) -> None:
        place = self.places[worker]
        due = [op for op in place.waiting if op.due is not None and op.due <= self.now]
        marked, place.marked = place.marked, set()
        found = [
            operation
            for key in sorted(marked, key=self.buckets.__getitem__)
            for operation in place.links.get(key, ())
        ]
        self.try_all(dict.fromkeys(found), self.report)  # each error before the next is asked
        for operation in sorted(due, key=lambda op: op.due or 0):
            if operation.state == "waiting":
                self.complete(operation, expired=True)

    # -- what must be so ------------------------------------------------------------------------

    def armed(self, worker: int) -> int:
        waiting = self.places[worker].waiting
        return sum(op.due is not None and op.due > self.now for op in waiting)

    def linked(self, operation: ModelOperation) -> bool:
        return any(operation in ops for place in self.places for ops in place.links.values())
