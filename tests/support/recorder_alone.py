"""A recorder without its process: one thread, a ring in private memory, steps by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from recorder_records import OFFSETS, RUN, Ring, facts
from wheeld.recorder import ring_reader
from wheeld.recorder.converter import Converter
from wheeld.recorder.facts import Facts, Offsets
from wheeld.recorder.parquet import remove_fresh
from wheeld.recorder.ring_reader import RingReader


class Recorder:
    def __init__(self, ring: Ring, trace: Path, known: Facts | None = None) -> None:
        self.ring, self.trace = ring, trace
        self.said: list[str] = []
        self.files: list[tuple[Path, int]] = []
        self.trouble: list[str | None] = []
        self.converter = Converter(
            trace, None, None, lambda *file: self.files.append(file), self.trouble.append,
            self.said.append,
        )  # fmt: skip
        self.intake = RingReader(
            ring.memory, trace, known or facts(), False, self.converter.add, self.said.append
        )

    def resume(self) -> Recorder:
        remove_fresh(self.trace / "_spool", RUN)
        self.intake.resume()
        return self

    def take(self) -> int:
        return self.intake.take(self.ring.view.tail)

    def finish(self) -> None:
        self.take()
        self.intake.close()
        self.convert()

    def convert(self) -> None:
        self.converter.finish()


def small_spools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_reader, "SPOOL_ROWS", 100)
    monkeypatch.setattr(ring_reader, "BATCH", 40)
    monkeypatch.setattr(Offsets, "read", classmethod(lambda cls: OFFSETS))


def left(trace: Path) -> list[str]:
    return sorted(path.name for path in (trace / "_spool").iterdir())
