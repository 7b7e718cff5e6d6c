"""The check of `wheeld fsck` on the payload heap: each block has a timer, each timer its block.

A block whose slot has an owner may remain of a killed worker: reaping that worker frees it.
"""

from __future__ import annotations

import numpy as np

from wheeld.fsck.image import ARMED, Array, Damage, WheelImage, mix, of_slots, of_texts
from wheeld_core import _native, packing
from wheeld_core.views import record


def payloads(s: WheelImage) -> list[Damage]:
    """Blocks without a timer, and armed timers without their block."""
    chunks, index, ids = _blocks(s)
    slots = (ids & np.uint64(packing.ID_SLOT.mask | packing.ID_KIND.mask)).astype(np.int64)
    outside = slots >= s.capacity
    inside = np.where(outside, 0, slots)
    leaked = np.flatnonzero(~outside & s.unowned[inside])
    lost = _lost(s, _numbers(chunks, index), ids)
    texts = [f"payload heap: chunk {c}, block {i} has no slot: id {id}" for c, i, id in zip(
        chunks[outside].tolist(), index[outside].tolist(), ids[outside].tolist(), strict=True
    )]  # fmt: skip
    return [
        of_texts(texts),
        of_slots(
            slots[leaked],
            mix(slots[leaked], ids[leaked], chunks[leaked]),
            lambda i: s.name(int(slots[leaked[i]])) + "has no owner, but has a payload in the heap",
        ),
        of_slots(
            lost,
            mix(lost, s.states[lost]),
            lambda i: s.name(int(lost[i])) + "is armed, but its payload is not in the heap",
        ),
    ]


def used(s: WheelImage) -> int:
    """How many blocks are taken."""
    return len(_blocks(s)[2])


def _blocks(s: WheelImage) -> tuple[Array, Array, Array]:
    """The chunks, places in them and ids of the blocks that are taken."""
    head, memory = record(s.memories.slots, "slots"), s.memories.slots
    end = min(int(head["heap_top"]), int(s.view.header["heap_backed"]))
    found = []
    for chunk in range(end):
        offset = s.geometry["heap_off"] + chunk * _native.CHUNK_BYTES
        ids = np.frombuffer(memory, "u8", _native.CHUNK_BLOCKS, offset).copy()
        taken = np.flatnonzero(ids)
        found.append((np.full(len(taken), chunk), taken, ids[taken]))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)
    chunks, index, ids = (np.concatenate(part) for part in zip(*found, strict=True))
    return chunks, index, ids


def _numbers(chunks: Array, index: Array) -> Array:
    """The words that name these blocks."""
    words: Array = packing.BLOCK_SET.mask | chunks << packing.BLOCK_CHUNK.at | index
    return np.asarray(words, np.uint64)


def _lost(s: WheelImage, blocks: Array, ids: Array) -> Array:
    """The armed slots whose first block is not theirs."""
    armed = np.flatnonzero(s.owned & s.same & (s.phases == ARMED))
    heavy = armed[s.slots["payload_size"][armed] == _native.IN_HEAP]
    first = np.frombuffer(s.memories.slots, "u4", s.capacity, s.geometry["blocks_off"])[heavy]
    theirs = np.isin(mix(first, s.ids[heavy]), mix(blocks, ids))
    lost: Array = heavy[~theirs]
    return lost
