"""The check of `wheeld fsck` on leases: places in the queue, the bits that lead to them, seats.

A worker sets its bit before it fills a place, and clears it afterwards. So a place without a bit is
damage, while a bit without a place only means that a worker was killed in between.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from wheeld.fsck.image import Array, Damage, WheelImage, of_texts
from wheeld.tables.registry import RowState
from wheeld_core import _native, segments
from wheeld_core.packing import LEASE_ROW, LEASE_TENANT, TAG_STATE, TICKET_NUMBER
from wheeld_core.views import DirectoryView

GONE: Final = (RowState.FREE, RowState.KEPT)
AHEAD: Final = 64
"""Tenancies: a seat's word has only their low bits, so a number far ahead is an old one."""
EXAMPLES: Final = 3


def leases(s: WheelImage) -> list[Damage]:
    """Only present workers wait for leases, each at the place where others look for it; seats
    belong to workers that exist."""
    view, count = s.keys, s.max_workers
    bits, used = view.waiting(), (view.lease_places["ticket"] != 0).any(axis=1)
    filled = used | (view.lease_places["lease"] != 0).any(axis=1)
    gone = np.isin(s.rows["state"], GONE)
    texts = [
        f"{s.worker(row)}: waits for a lease, but no worker is there"
        for row in np.flatnonzero(gone & (filled | bits[:count])).tolist()
    ]
    texts += [
        f"row {row}: waits for a lease, but does not exist"
        for row in (np.flatnonzero(bits[count:]) + count).tolist()
    ]
    texts += [
        # the tickets: of a living wheel only what stays is damage
        f"{s.worker(row)}: waits for a lease, and its bit says that it does not: ticket "
        f"{int(TICKET_NUMBER.of(view.lease_places['ticket'][row]).max())}"
        for row in np.flatnonzero(~gone & used & ~bits[:count]).tolist()
    ]
    given = int(view.leases["tickets"])
    late = (TICKET_NUMBER.of(view.lease_places["ticket"]) > given).any(axis=1)
    texts += [
        f"{s.worker(row)}: waits for a lease with a ticket that was not issued, of {given}"
        for row in np.flatnonzero(~gone & late).tolist()
    ]
    for what, which in _strange_seats(view).items():
        places = np.flatnonzero(which)
        first = ", ".join(str(place) for place in places[:EXAMPLES].tolist())
        if len(places):
            texts.append(f"word places {first} ({len(places):,}): each is a seat of {what}")
    return [of_texts(texts)]


def _strange_seats(view: DirectoryView) -> dict[str, Array]:
    """Masks over all places."""
    words = view.sets["values"].ravel()
    seat = TAG_STATE.of(view.sets["tags"].ravel()) == _native.WORD_LEASE
    seat &= (words != 0) & (words != np.uint64(2**64 - 1))
    rows, tenants = LEASE_ROW.of(words).astype(np.int64) - 1, LEASE_TENANT.of(words)
    there = (rows >= 0) & (rows < len(view.rows))
    tenancy = view.rows["tenancy"][np.where(there, rows, 0)]
    ahead = (tenants - ((tenancy + np.uint64(1)) // np.uint64(2))) & np.uint64(LEASE_TENANT.most)
    return {
        "a worker that does not exist": seat & ~there,
        "a worker that has not come yet": seat & there & (ahead < AHEAD),
    }


def used(s: WheelImage) -> int:
    """How many places in the queue are in use."""
    return int((s.keys.lease_places["ticket"] != 0).sum())


def mend(name: str, keys: _native.Memory, rows: Array, alone: bool) -> None:
    """Empty the places of rows without a worker, and free the seats of absent workers; if `alone`
    (no worker lives), empty all places."""
    view = DirectoryView(segments.data(name, os.getuid()))  # what has no memory stays so
    shared = DirectoryView(keys)
    gone = np.isin(rows["state"], GONE) | alone
    for field in ("ticket", "lease"):
        filled = (view.lease_places[field] != 0) & gone[:, np.newaxis]
        shared.lease_places[field][filled] = 0
    there = np.zeros(view.leases["waiting"].size * 64, np.uint8)
    there[: len(rows)] = ~gone
    shared.leases["waiting"] &= np.packbits(there, bitorder="little").view(np.uint64)
    for which in _strange_seats(view).values():
        for place in np.flatnonzero(which & alone).tolist():
            shared.sets["values"][divmod(place, _native.WORD_PLACES)] = 0
