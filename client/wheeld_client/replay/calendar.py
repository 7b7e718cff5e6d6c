"""When which request is done: a calendar of pages, about a millisecond each."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PAGE_BITS: Final = 20
"""A page has 2**20 ns."""
_VOLUME_BITS: Final = 16
"""Pages of one volume; what is due in a later volume is only sorted into pages when that begins."""


class Calendar:
    """Numbers with times at which they are taken out again: never early, up to one page late."""

    def __init__(self) -> None:
        self._pages: dict[int, list[Ints]] = {}
        self._volumes: dict[int, list[tuple[Ints, Ints]]] = {}
        self._next = self._volume = 0
        self._passed = -1  # the last page that was taken out
        self._begun = False
        self.count = 0

    def add(self, due_ns: Ints, numbers: Ints) -> None:
        """Put `numbers` in, each at its own time."""
        self.count += len(numbers)
        self._sort_in((due_ns >> PAGE_BITS) + 1, numbers)

    def _sort_in(self, pages: Ints, numbers: Ints) -> None:
        if not len(numbers):
            return
        if not self._begun:
            self._next, self._begun = int(pages.min()), True
            self._volume = self._next >> _VOLUME_BITS
        pages = np.maximum(pages, self._passed + 1)
        self._next = min(self._next, int(pages.min()))
        volumes = pages >> _VOLUME_BITS
        later = volumes > self._volume
        if later.any():
            for volume in np.unique(volumes[later]).tolist():
                picked = volumes == volume
                self._volumes.setdefault(volume, []).append((pages[picked], numbers[picked]))
            pages, numbers = pages[~later], numbers[~later]
            if not len(pages):
                return
        low = (pages & ((1 << _VOLUME_BITS) - 1)).astype(np.uint16)
        order = np.argsort(low, kind="stable")  # of 16 bits: a radix sort
        pages, numbers = pages[order], numbers[order]
        starts = np.flatnonzero(np.diff(pages, prepend=-1))
        ends = [*starts[1:].tolist(), len(pages)]
        for page, start, end in zip(pages[starts].tolist(), starts.tolist(), ends, strict=True):
            # a copy: a view would keep the whole batch until its last request is done
            self._pages.setdefault(page, []).append(numbers[start:end].copy())

    def take(self, now_ns: int) -> Ints:
        """Take out what is due."""
        last = now_ns >> PAGE_BITS
        if not self._begun or last < self._next:
            self._passed = max(self._passed, last)
            return np.empty(0, np.int64)
        found: list[Ints] = []
        while self._next <= last:
            self._open_volume(self._next >> _VOLUME_BITS)
            end = min(last + 1, (self._volume + 1) << _VOLUME_BITS)
            if len(self._pages) < end - self._next:  # a long time has passed
                due = sorted(page for page in self._pages if page < end)
            else:
                due = [page for page in range(self._next, end) if page in self._pages]
            for page in due:
                found += self._pages.pop(page)
            self._next = end
        self._passed = last
        taken = np.concatenate([np.empty(0, np.int64), *found])
        self.count -= len(taken)
        return taken

    def _open_volume(self, volume: int) -> None:
        if volume > self._volume:
            self._volume = volume
            for pages, numbers in self._volumes.pop(volume, ()):
                self._sort_in(pages, numbers)

    def next_ns(self) -> int | None:
        """When something is due next, or when to ask again at the latest; None: it is empty."""
        if not self.count:
            return None
        volume_end = (self._volume + 1) << _VOLUME_BITS
        return min(self._pages, default=volume_end) << PAGE_BITS
