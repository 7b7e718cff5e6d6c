"""The driver's decisions: which attempt of each shard counts, in one file per batch.

    CHECKPOINT/manifests/000000012.json

It appears whole or not at all, and never twice. Until it exists, batch 12 has not happened: all
files of tasks are attempts. From then on the manifest defines batch 12, and a driver that runs the
batch again makes the sink from it alone.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.batch.task import Result
from wheeld_pipeline.overflow.checkpoint.files import Files
from wheeld_pipeline.overflow.checkpoint.log import Name, Position, delta_name, segment_name

FOLDER: Final = "manifests"
SHARDS: Final = "shards"
KEEP: Final = 10
"""How many batches' manifests are kept, for diagnosis."""
SWEEP_EVERY: Final = 1000


class Manifest(NamedTuple):
    batch: int
    results: tuple[Result, ...]
    """One for each shard, in their order."""

    def text(self) -> str:
        results = [result._asdict() | {"position": result.position._asdict()}
                   for result in self.results]  # fmt: skip
        return json.dumps({"batch": self.batch, "results": results})

    @classmethod
    def of_text(cls, text: str) -> Manifest:
        said = json.loads(text)
        return cls(said["batch"], tuple(result_of(one) for one in said["results"]))

    def files(self) -> set[str]:
        """All files in the checkpoint that it names."""
        named = set()
        for result in self.results:
            position = result.position
            names = [delta_name(name) for name in (position.at, *(d[:2] for d in position.chain))]
            names += [segment_name(n, name) for n, name in enumerate(position.segments)]
            named |= {f"{SHARDS}/{result.shard}/{name}" for name in names}
        return named


class Ledger:
    """The manifests of a checkpoint; only its one driver uses them.

    Parameters
    ----------
    files : Files
        The checkpoint.
    shards : int
    """

    def __init__(self, files: Files, shards: int) -> None:
        self._files = files
        files.make(FOLDER)
        numbers = self._numbers()
        self.last = self._read(numbers[-1]) if numbers else Manifest(
            -1, tuple(_begin(shard) for shard in range(shards))
        )  # fmt: skip
        self._before: Manifest | None = None
        self.sweep()

    def find(self, batch: int) -> Manifest | None:
        """The manifest of a decided batch; None: it is the next one.

        Raises
        ------
        PipelineError
            It is neither: Spark's part of the checkpoint is from another time than ours.
        """
        if batch == self.last.batch:
            return self.last
        if batch == self.last.batch + 1:
            return None
        raise PipelineError(
            f"{self._files.base}: Spark begins batch {batch}, and the last one decided there is "
            f"{self.last.batch}: parts of this checkpoint are missing, or come from another "
            "time; put the whole of it back"
        )

    def decide(self, manifest: Manifest) -> None:
        """Decide the batch.

        Raises
        ------
        PipelineError
            Another driver has decided the batch.
        """
        if not self._files.put_new(manifest.text(), _name(manifest.batch)):
            raise PipelineError(
                f"{self._files.base}: another driver has decided batch {manifest.batch}: one "
                "overflow at a time runs on a checkpoint"
            )
        self._before, self.last = self.last, manifest

    def clean(self) -> None:
        """Remove files that the last manifest no longer needs, once the sink has the batch."""
        if self._before is not None:
            for name in self._before.files() - self.last.files():
                self._files.remove(name)
        self._files.remove(_name(self.last.batch - KEEP))
        if self.last.batch % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.sweep()

    def sweep(self) -> None:
        """Remove files of attempts that did not count."""
        needed = self.last.files()
        self._files.sweep(FOLDER)
        for number in self._numbers():
            if number <= self.last.batch - KEEP:
                self._files.remove(_name(number))
        for result in self.last.results:
            folder = f"{SHARDS}/{result.shard}"
            for name in self._files.names(folder):
                if _batch_of(name) <= self.last.batch and f"{folder}/{name}" not in needed:
                    self._files.remove(f"{folder}/{name}")

    def _numbers(self) -> list[int]:
        return sorted(int(name[:9]) for name in self._files.names(FOLDER) if name[-5:] == ".json")

    def _read(self, batch: int) -> Manifest:
        try:
            return Manifest.of_text(self._files.read_text(_name(batch)))
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(f"{self._files.at(_name(batch))}: {error}; expected a manifest of "
                                "this version") from error  # fmt: skip


def result_of(said: dict[str, Any]) -> Result:
    position = said["position"]
    chain = tuple((int(b), int(t), int(rows)) for b, t, rows in position["chain"])
    segments = tuple(_pair(one) for one in position["segments"])
    made = Position(_pair(position["at"]), chain, segments, position["rows"])
    return Result(**{**said, "position": made, "lost": tuple(said.get("lost", ()))})


def _pair(said: list[int]) -> Name:
    return int(said[0]), int(said[1])


def _begin(shard: int) -> Result:
    return Result(shard, Position(), {}, {}, 0, 0, None, None, None, {}, 0, None)


def _name(batch: int) -> str:
    return f"{FOLDER}/{batch:09d}.json"


def _batch_of(name: str) -> int:
    digits = name.rsplit("-", 2)[-2]
    return int(digits) if digits.isdigit() else 0
