"""The task of one shard in one batch: an attempt, which counts if the driver names it.

    open     lock the shard's columns on this host, bring them to the batch before
    collect what the wheel has fired
    step     wheel, commands, what is due: in columns
    wheel    withdraw, hand out; what did not get in is refused
    seal     the delta, in the checkpoint
    stage    rows for the sink, beside it
    apply    the delta, to the columns; segments whose turn it is, into the checkpoint

Nothing before `apply` changes the columns, and every file that is written is named after the
attempt. A wheel may get timers of an attempt that does not count. Key and generation reveal that,
and expirations of timers that are not in the log are ignored.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wheeld_client import Timers, WheelError
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import locked
from wheeld_pipeline.overflow.batch import intake, wheels
from wheeld_pipeline.overflow.batch.intake import Commands
from wheeld_pipeline.overflow.batch.step import Heard, Step
from wheeld_pipeline.overflow.checkpoint import log as logs
from wheeld_pipeline.overflow.checkpoint.log import NOTHING, Name, Position
from wheeld_pipeline.overflow.checkpoint.places import Place
from wheeld_pipeline.overflow.columns import delta
from wheeld_pipeline.overflow.columns.store import Store, new_token
from wheeld_pipeline.overflow.machine import EXPIRED, HANDED, REJECTED, Rules
from wheeld_pipeline.overflow.shards import Daemon

if TYPE_CHECKING:
    import pyarrow as pa

LOCK_SECONDS = 60.0
MOST_KEPT = 16
"""Shards whose columns a process keeps open: eight descriptors each."""
_kept: dict[Path, Store] = {}
COUNTS = ("handed", "refused", "fired", "strange", "withdrawn", EXPIRED, REJECTED)


class Errand(NamedTuple):
    job: str
    secret: bytes
    batch: int
    now_ms: int
    rules: Rules
    log: str
    """The shard's folder in the checkpoint, for deltas and segments."""
    staging: str
    cache: str | None
    """The folder of all columns on a host; None: the default one."""
    shard: int
    daemon: Daemon
    position: Position

    @property
    def worker(self) -> str:
        return f"overflow-{self.job[:8]}-{self.shard}"


class Result(NamedTuple):
    """The files made by an attempt."""

    shard: int
    position: Position
    """The state after the batch, if this attempt counts."""
    staged: dict[str, str]
    """Kind to file, for the sink."""
    counts: dict[str, int]
    pending: int
    remembered: int
    trouble: str | None
    brought: str | None
    late_us: dict[str, int] | None
    seconds: dict[str, float]
    in_wheel: int
    wakes_ms: int | None
    """When a key is due next; None: never."""
    lost: tuple[str, ...] = ()
    """Sentences about torn files."""

    def has_work(self, now_ms: int) -> bool:
        return self.in_wheel > 0 or (self.wakes_ms is not None and self.wakes_ms <= now_ms)

    def idle(self) -> Result:
        none = dict.fromkeys(COUNTS, 0)
        return self._replace(
            staged={}, counts=none, brought=None, late_us=None, seconds={}, lost=()
        )


def tend(errand: Errand, batches: Sequence[pa.RecordBatch]) -> Result:
    return Attempt(errand).run(batches)


class Attempt:
    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._log = Place(errand.log)
        self._counts = dict.fromkeys(COUNTS, 0)
        self._trouble: str | None = None
        self._staged: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._mark = time.perf_counter()
        self._name: Name = (errand.batch, new_token())

    def run(self, batches: Sequence[pa.RecordBatch]) -> Result:
        errand = self._errand
        self._took("read")
        with opened(_folder(errand.cache, errand.job), errand.shard) as store:
            brought = logs.bring(store, self._log, errand.position)
            self._took("open")
            commands = intake.read(batches, errand.secret)
            step = self._with_wheel(store, commands)
            position = self._finish(store, step)
            return Result(
                errand.shard, position, self._staged, self._counts, store.pending,
                store.remembered, self._trouble, brought.how, _lateness(step), self._seconds,
                store.keys(HANDED), store.next_ms(), brought.lost,
            )  # fmt: skip

    def _with_wheel(self, store: Store, commands: Commands) -> Step:
        """Collect expirations, step, hand out. A daemon that is away reports nothing and accepts
        nothing."""
        step = None
        if store.keys(HANDED):
            try:
                with wheels.visit(self._errand.daemon, self._errand.worker) as timers:
                    heard, self._counts["strange"] = wheels.hear(timers)
                    self._counts["fired"] = len(heard.hints)
                    self._took("hear")
                    step = self._step(store, commands, heard)
                    self._give(timers, store, step)
                return step
            except (WheelError, OSError, ValueError) as error:
                self._complain(error)
        if step is None:
            step = self._step(store, commands, Heard.nothing())
            if len(step.handed) and self._trouble is None:
                try:
                    with wheels.visit(self._errand.daemon, self._errand.worker) as timers:
                        self._give(timers, store, step)
                    return step
                except (WheelError, OSError, ValueError) as error:
                    self._complain(error)
        self._refuse(step)
        return step

    def _step(self, store: Store, commands: Commands, heard: Heard) -> Step:
        step = Step(store, commands, heard, self._errand.now_ms, self._errand.rules)
        self._took("step")
        return step

    def _give(self, timers: Timers, store: Store, step: Step) -> None:
        store.forget_wheel(timers.wheel_token)
        ids = store.wheel.array[step.withdrawn]
        if ids.any():
            self._counts["withdrawn"] = int(timers.cancel_many(ids[ids > 0]).sum())
        self._ids, why = wheels.hand_out(timers, step)
        self._note(int(np.count_nonzero(self._ids)), len(step.handed))
        if why is not None:
            self._complain(why)
        self._took("wheel")

    def _refuse(self, step: Step) -> None:
        self._ids = np.zeros(len(step.handed), np.uint64)
        step.refuse(step.handed)
        self._note(0, len(step.handed))

    def _note(self, handed: int, of: int) -> None:
        self._counts["handed"], self._counts["refused"] = handed, of - handed

    def _complain(self, error: object) -> None:
        host = os.uname().nodename
        self._trouble = f"shard {self._errand.shard} on {host}: {error}"

    # -- what is written ------------------------------------------------------------------------

    def _finish(self, store: Store, step: Step) -> Position:
        changes, position = step.changes(), self._errand.position
        said = [delta.of_expirations(step.expired), delta.of_rejects(step.rejects)]
        self._counts[EXPIRED], self._counts[REJECTED] = (part.num_rows for part in said)
        if not (len(changes.rows) or any(part.num_rows for part in said)):
            return position
        self._log.write(logs.delta_name(self._name), [delta.of_changes(changes), *said])
        self._took("seal")
        self._stage(said)
        store.apply(changes, *self._name)
        store.wheel.array[step.rows[step.handed]] = self._ids
        self._took("apply")
        return self._moved(store, len(changes.rows))

    def _stage(self, said: list[pa.RecordBatch]) -> None:
        place = Place(self._errand.staging)
        rows = (delta.expired_rows, delta.rejected_rows)
        for kind, part, made in zip((EXPIRED, REJECTED), said, rows, strict=True):
            if part.num_rows:
                name = f"{kind}-{self._name[0]}-{self._errand.shard}-{self._name[1]:016x}.parquet"
                place.write_parquet(name, made(part))
                self._staged[kind] = name
        self._took("stage")

    def _moved(self, store: Store, rows: int) -> Position:
        was = self._errand.position
        chain = (*was.chain, (*self._name, rows))
        position = Position(self._name, chain, was.segments, store.rows)
        made = logs.snapshot(store, self._log, position)
        if made:
            count = max(max(made) + 1, len(was.segments))
            held = dict(enumerate(was.segments)) | made
            segments = tuple(held.get(number, NOTHING) for number in range(count))
            position = logs.trimmed(store, position._replace(segments=segments))
            self._took("snapshot")
        return position

    def _took(self, what: str) -> None:
        now = time.perf_counter()
        self._seconds[what] = self._seconds.get(what, 0.0) + now - self._mark
        self._mark = now


@contextmanager
def opened(folder: Path, shard: int) -> Iterator[Store]:
    """Open the columns of a shard on this host, for one task at a time.

    Raises
    ------
    PipelineError
        Another task has had them for a minute.
    """
    with locked(folder / f"{shard}.lock", LOCK_SECONDS) as mine:
        if not mine:
            raise PipelineError(
                f"{folder}: another task has shard {shard} for {LOCK_SECONDS:.0f} s: is an "
                "overflow of the same checkpoint running on this host?"
            )
        store = _store(folder / str(shard))
        yield store
        while len(_kept) >= MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[store.folder] = store


def _store(folder: Path) -> Store:
    """The shard's store. A store that this process opened in an earlier batch is reused if it still
    matches the files, because its pages are mapped, and a batch touches nearly all of them."""
    kept = _kept.pop(folder, None)
    return kept if kept is not None and kept.is_current else Store(folder)


def _folder(cache: str | None, job: str) -> Path:
    """A folder of this user alone: no other user may write the files that are mapped here."""
    base = Path(cache or Path(tempfile.gettempdir()) / f"wheeld-overflow-{os.geteuid()}")
    folder = base / job
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PipelineError(
            f"{base}: expected a directory of this user that nobody else can write to: give "
            "another one with --cache"
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _lateness(step: Step) -> dict[str, int] | None:
    late: Any = step.expired.fired_us - step.expired.records["deadline_us"]
    if not len(late):
        return None
    late.sort()
    return {"p50": int(late[len(late) // 2]), "max": int(late[-1])}
