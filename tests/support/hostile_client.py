"""A client that writes nonsense, as fast as it can: `hostile_client.py DAEMON HOW PREFIX SEED`.

    own     over its own segment, and over slots, states and owner words of its own slabs
    all     over everything that it maps writable: its own segment, and all of the slots
    rings   only into its rings and their positions, as a client with a bug would

Runs until it is killed; prints "ready" when it begins.
"""

import mmap
import os
import sys

import numpy as np
import numpy.typing as npt

from wheeld_client import Timers, connect
from wheeld_core import _native, segments
from wheeld_core.packing import OWNER_WORKER, owner_row
from wheeld_core.views import SlotsView, record

SLABS = 20
"""How many slabs it gets before it goes mad."""
WORDS = npt.NDArray[np.uint64]


def map_writable(name: str) -> mmap.mmap:
    with open(f"/dev/shm/{name}", "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def values(rng: np.random.Generator, count: int) -> WORDS:
    words: WORDS = rng.integers(1, 2**64 - 1, count, np.uint64)
    kinds = rng.integers(0, 4, count)
    words[kinds == 1] &= np.uint64(OWNER_WORKER.mask)
    words[kinds == 2] &= np.uint64(0xFFFFFFFF_000003FF)
    words[kinds == 3] |= np.uint64(0xFFFFFFFF_FFFF0000)
    words[words == 0] = 1
    return words


def own_words(slots: mmap.mmap, timers: Timers, row: int) -> list[WORDS]:
    room = int(timers._wheel.header["payload_bytes"])
    view = SlotsView(slots, timers._wheel.capacity, room)
    found: list[WORDS] = []
    for slab in np.flatnonzero(owner_row(view.owners) == row):
        begin, end = slab * _native.SLAB_SLOTS, (slab + 1) * _native.SLAB_SLOTS
        found += [view.owners[slab : slab + 1], view.states[begin:end]]
        found.append(view.slots[begin:end].view(np.uint64))
    return found


def main(daemon: str, how: str) -> None:
    timers = connect(daemon, worker="hostile")
    row = next(row for row, name in timers.workers().items() if name == "hostile")
    timers.schedule_many(np.full(_native.SLAB_SLOTS * SLABS, 0.5))
    prefix = sys.argv[3]
    names = segments.of_daemon(prefix, os.getuid())
    worker, slots = map_writable(names[f"worker-{row}"]), map_writable(names["slots"])
    targets = [np.frombuffer(worker, np.uint64)]
    if how == "own":
        targets += own_words(slots, timers, row)
    elif how == "all":
        targets.append(np.frombuffer(slots, np.uint64))
    else:
        begin = int(record(worker, "worker")["sub_off"])
        targets = [np.frombuffer(worker, np.uint64, offset=begin)]
        targets.append(np.frombuffer(worker, np.uint64, count=20, offset=256))
        targets.append(np.frombuffer(worker, np.uint64, count=4, offset=384))
    rng = np.random.default_rng(int(sys.argv[4]))
    print("ready", flush=True)
    while True:
        words = values(rng, 64)
        for target in targets:
            target[rng.integers(0, len(target), 64)] = words


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
