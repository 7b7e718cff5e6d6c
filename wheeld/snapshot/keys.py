"""The keys of a snapshot's timers: read from the daemon's directory, and claimed in the next one's.

A word of the directory says which timer has a key. Its place follows from a hash with a random seed
for each wheel, so a snapshot contains the keys themselves, and a restore claims all words again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_core import _native, packing
from wheeld_core.errors import WheelError
from wheeld_core.views import record

Keys = npt.NDArray[np.object_]
"""For each timer the bytes of its key, encoded, or None."""
AT_ONCE: Final = 8192
"""Keys that are read without releasing the GIL."""
KEYED: Final = np.uint16(packing.FLAGS_KEYED.mask)
HELD: Final = np.uint16(packing.FLAGS_HELD.mask)


@dataclass(frozen=True)
class Directory:
    """The directory of keys of a wheel, in its segment."""

    memory: _native.Memory
    max_workers: int
    capacity: int
    token: int
    """The wheel's: the seed of the hash."""

    @classmethod
    def of(cls, memory: _native.Memory, wheel: _native.Memory) -> Directory:
        sizes, head = record(wheel, "wheel"), record(wheel, "head")
        return cls(memory, int(sizes["max_workers"]), int(sizes["capacity"]), int(head["token"]))

    def read(self, ids: npt.NDArray[np.uint64]) -> tuple[Keys, npt.NDArray[np.bool_]]:
        """The keys of these timers, which all have one, and whether the key names the timer. If
        not, the key is about to name it, or the timer was replaced; it does not fire in that
        state."""
        found = []
        for first in range(0, len(ids), AT_ONCE):
            part = np.ascontiguousarray(ids[first : first + AT_ONCE])
            found += _native.read_keys(self.memory, self.max_workers, self.capacity, part)
        keys = np.full(len(found), None, object)
        keys[:] = [key for key, _ in found]
        return keys, np.array([named for _, named in found], bool)

    def restore(self, ids: npt.NDArray[np.uint64], keys: Keys, claims: Any) -> None:
        """Claim the keys of timers that will be armed afterwards. `WheelError`: there is no
        room."""
        keyed = np.flatnonzero(keys != None)  # noqa: E711
        timers = [(int(ids[i]), keys[i], bool(claims[i])) for i in keyed.tolist()]
        if not _native.restore_keys(
            self.memory, self.max_workers, self.capacity, self.token, timers
        ):
            raise WheelError(
                f"no room for the keys of the snapshot's {len(timers)} timers that have one: start "
                "with a larger --capacity, or enlarge /dev/shm"
            )


def is_keyed(timers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = timers["flags"] & KEYED != 0
    return found


def is_held(timers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which timers keep their key until the acknowledgement."""
    found: npt.NDArray[np.bool_] = timers["flags"] & HELD != 0
    return found


def joined(keys: Keys) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """The sizes of the keys (without None), and their bytes, end to end."""
    there = [key for key in keys.tolist() if key is not None]
    sizes = np.array([len(key) for key in there], np.uint16)
    return sizes, np.frombuffer(b"".join(there), np.uint8)


def separated(
    timers: npt.NDArray[Any], sizes: npt.NDArray[np.uint16], together: npt.NDArray[np.uint8]
) -> Keys:
    """The inverse of `joined`, for timers that say whether they have a key."""
    ends, content = np.cumsum(sizes, dtype="i8").tolist(), together.tobytes()
    keys = np.full(len(timers), None, object)
    keys[is_keyed(timers)] = [
        content[begin:end] for begin, end in zip([0, *ends], ends, strict=False)
    ]
    return keys


def doubled(keys: Keys, claims: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which timers claim a key that a later timer claims as well.

    A key names one timer at a time, so if two timers were read while it named them, the later one
    has replaced the other.
    """
    last = {keys[i]: i for i in np.flatnonzero(claims).tolist()}
    found = np.zeros(len(keys), bool)
    found[claims] = [last[keys[i]] != i for i in np.flatnonzero(claims).tolist()]
    return found
