"""The rule of agreed.h in the core: everything that two processes must agree on is in its list.

A constant or an enumerator of any header of the core either goes into the fingerprint, by the list
WH_AGREED, or is one process's own business and stands below with the reason. tools/house_rules.py
asks; tests/core/test_fingerprint.py changes each of those in the list and looks at the fingerprint.
"""

from __future__ import annotations

import re

OWN = {
    "WH_ATTACH_READY": "an answer within one process",
    "WH_ATTACH_TOO_SHORT": "an answer within one process",
    "WH_ATTACH_NOT_READY": "an answer within one process",
    "WH_ATTACH_FOREIGN": "an answer within one process",
    "WH_ATTACH_VERSION": "an answer within one process",
    "WH_ATTACH_FINGERPRINT": "an answer within one process",
    "WH_PEER_GONE": "the clock's private view of a worker",
    "WH_PEER_DYING": "the clock's private view of a worker",
    "WH_PEER_LEAVING": "the clock's private view of a worker",
    "WH_PEER_ABSENT": "the clock's private view of a worker",
    "WH_PEER_PRESENT": "the clock's private view of a worker",
    "WH_NEWS_NONE": "the clock's private view of a worker",
    "WH_NEWS_QUIET": "the clock's private view of a worker",
    "WH_NEWS_WAKES": "the clock's private view of a worker",
    "WH_UNHEARD_NS": "a worker's patience with its clock",
    "WH_ALARM_EVERY_NS": "how often a worker complains",
    "WH_MAGAZINE": "a worker's private cache of slots",
    "WH_DRAIN_AHEAD": "how far the clock prefetches",
    "WH_RECORDS_AHEAD": "how far a worker prefetches",
    "WH_ABSURD": "an answer within one process",
    "WH_GIVES_BACK": "an answer within one process",
    "WH_GIVES_NOTHING": "an answer within one process",
    "WH_PREFETCH_AHEAD": "how far the clock prefetches",
    "WH_PREFETCH_STALE": "how far the clock prefetches",
    "WH_HINT_NODES": "in the memory of the clock only",
    "WH_HINTS_LOST": "in the memory of the clock only",
    "WH_SHARD_BUDGET": "how much the clock does for one shard at once",
    "WH_FEW": "how many deadlines the clock reads before it sleeps",
    "WH_ROW_BUDGET": "how much the clock does in a pass",
    "WH_ROWS_BUDGET": "how much the clock does in a pass",
    "WH_ROW_LEAST": "how much the clock does in a pass",
    "WH_ADVANCE_BUDGET": "how much the clock does in a pass",
    "WH_RELINK_BUDGET": "how much the clock does in a pass",
    "WH_RELINK_LOOKS": "how much the clock does in a pass",
    "WH_OFFER_LOOKS": "how much the clock does in a pass",
    "WH_OFFER_SHARE": "how much the clock gives to one member at once",
    "WH_OFFER_PATIENCE_NS": "how long the clock leaves an offer with a member that it woke",
    "WH_UNCLAIMED_LOOKS": "how much the clock does in a pass",
    "WH_SETTLE_IN_HAND": "how much the clock does in a pass",
    "WH_HELD_RESTS": "when the clock looks again",
    "WH_REAP_SLABS": "how much the clock does in a pass",
    "WH_REAP_OWN": "how much the clock does in a pass",
    "WH_REAP_LISTED": "how much the clock does in a pass",
    "WH_BEAT_STEPS": "how often a recovering clock shows its progress",
    "WH_GRANT_LOOKS": "how much the clock does in a pass",
    "WH_WINDOW_LOOKS": "how many windows a reader of a limit looks at",
    "WH_GRANT_SLOTS": "how much the clock does in a pass",
    "WH_LEASE_ANY": "how one worker's threads sleep",
    "WH_LEASE_NO_ROOM": "an answer within one process",
    "WH_LEASE_REFUSED": "an answer within one process",
    "WH_LEASE_TAKEN": "an answer within one process",
    "WH_LEASE_TURN_NS": "how long a worker leaves a waiter its turn",
    "WH_SLAB_WORKED": "a worker's private view of a slab",
    "WH_SLAB_SPLIT": "a worker's private view of a slab",
    "WH_SLAB_MARK": "a worker's private view of a slab",
    "WH_SLAB_STACKED": "a worker's private view of a slab",
    "WH_SLAB_HELD": "a worker's private view of a slab",
    "WH_NAP_GONE": "what is left of a call that waited, within a process",
    "WH_NAP_OVER": "what is left of a call that waited, within a process",
    "WH_NAP_STOPPED": "what is left of a call that waited, within a process",
    "WH_CALL_BAD_DELAY": "how a call ends, within a process",
    "WH_CALL_BAD_OFFSETS": "how a call ends, within a process",
    "WH_CALL_GONE": "how a call ends, within a process",
    "WH_CALL_DETACHED_FULL": "how a call ends, within a process",
    "WH_CALL_HEAP_FULL": "how a call ends, within a process",
    "WH_CALL_LONG_PAYLOAD": "how a call ends, within a process",
    "WH_CALL_NOT_DRAINED": "how a call ends, within a process",
    "WH_CALL_KEYS_FULL": "how a call ends, within a process",
    "WH_CALL_TAKEN": "how a call ends, within a process",
    "WH_CALL_KEY_HELD": "how a call ends, within a process",
    "WH_KEY_RAISE": "what one call asks for",
    "WH_KEY_KEEP": "what one call asks for",
    "WH_KEY_REPLACE": "what one call asks for",
    "WH_KEY_LATER": "what one call asks for",
    "WH_KEY_EARLIER": "what one call asks for",
    "WH_KEY_UNSEEN": "what one call has seen",
    "WH_KEY_ENDED": "what one call has seen",
    "WH_KEY_ABSENT": "what one call has seen",
    "WH_MOVE_EARLIER": "what one call asks for",
    "WH_MOVE_ANYWHERE": "what one call asks for",
    "WH_MOVE_LATER": "what one call asks for",
    "WH_UNNAMED_NS": "when the clock looks again",
    "WH_KEYS_PAGE": "a page of the kernel's",
    "WH_CALL_NO_MEMORY": "how a call ends, within a process",
    "WH_CALL_OK": "how a call ends, within a process",
    "WH_CALL_OVER": "how a call ends, within a process",
    "WH_CALL_OVER_QUOTA": "how a call ends, within a process",
    "WH_CALL_RING_FULL": "how a call ends, within a process",
    "WH_CALL_RING_TOO_SMALL": "how a call ends, within a process",
    "WH_CALL_STOPPED": "how a call ends, within a process",
    "WH_CALL_WHEEL_FULL": "how a call ends, within a process",
    "WH_PATIENCE_NS": "how long a worker waits for slots",
    "WH_NAP_NS": "how long a worker naps",
    "WH_ROOM_SECONDS": "how long a worker waits for room",
    "WH_SPIN_ROOM_NS": "how long a worker polls before it sleeps",
    "WH_AWAIT_BACKLOG_NS": "how long a worker polls for returned slots",
    "WH_UNDO_NS": "how long a worker tries to notify the clock of what it takes back",
    "WH_REST_LOOK_NS": "how long a worker sleeps between checks for remaining slots",
    "WH_BATCH_PUBLISH": "how a worker cuts a batch",
    "WH_BATCH_PIECE": "how a worker cuts a batch",
    "WH_BATCH_AHEAD": "how far a worker prefetches",
    "WH_KEYS_AHEAD": "how far a worker prefetches",
    "WH_ROW_KEY_FREE": "how far a batch is, within a process",
    "WH_ROW_KEY_NEW": "how far a batch is, within a process",
    "WH_ROW_KEY_TAKEN": "how far a batch is, within a process",
    "WH_ROW_KEY_CLAIMED": "how far a batch is, within a process",
    "WH_ROW_NAME": "the size of a field of the layout",
    "WH_TARGET_NAME": "a worker's own memory",
    "WH_MOST_SECONDS": "the argument of a call",
    "WH_QUOTA_PAUSE_NS": "how often a worker counts what it holds",
    "WH_BACK_BYTES": "how much memory the clock reserves at a time",
    "WH_HUGE_BYTES": "a page of the kernel's",
    "WH_HUGE_CAPACITY": "how the daemon reserves memory",
    "WH_HEAP_STEP": "how much memory the clock reserves at a time",
    "WH_HEAP_OWN": "how a worker searches for a block",
    "WH_HEAP_ALL": "how a worker searches for a block",
    "WH_HEAP_COUNT": "how a worker searches for a block",
    "WH_MAX_PIECES": "follows from WH_MAX_PAYLOAD",
    "WH_SPANS": "parts of a segment, within one process",
    "WH_SETTLE_PUBLISH": "how often the clock publishes",
    "WH_GREW": "an answer within one process",
    "WH_GREW_NOT": "an answer within one process",
    "WH_GREW_NO_ROOM": "an answer within one process",
    "WH_WORD_CHOICES": "follows from WH_WORD_PLACES",
    "WH_WORD_LINE": "in which order a worker looks at places",
    "WH_WORD_SPARE": "which of the places a worker takes",
    "WH_LIMIT_TAKEN": "an answer within one process",
    "WH_LIMIT_REFUSED": "an answer within one process",
    "WH_LIMIT_NO_ROOM": "an answer within one process",
    "WH_LIMIT_MOST": "follows from the packing",
    "WH_LIMIT_LATEST": "follows from the packing",
    "WH_LOG_MOST": "follows from the packing",
    "WH_LOG_PLACE": "follows from the packing",
}
"""Constants that no other process needs to know, and why."""

LISTED = re.compile(r"\bK\((\w+)\)")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DEFINE = re.compile(r"^#define (WH_\w+) +(?!\\)\S", re.MULTILINE)
_ENUM = re.compile(r"\benum(?: \w+)? *\{(.*?)\}", re.DOTALL)
_ENUMERATOR = re.compile(r"\b(WH_[A-Z]\w*)\b *(?:=|,|$)")


def constants(text: str) -> set[str]:
    """The constants and enumerators that a header declares; function-like macros are none."""
    plain = _COMMENT.sub("", text)
    found = set(_DEFINE.findall(plain))
    for body in _ENUM.findall(plain):
        for part in body.split(","):
            found.update(_ENUMERATOR.findall(part.strip() + ","))
    return found


def lapses(headers: dict[str, str]) -> list[tuple[str, str]]:
    """The faults, as (name of the header, message), given the headers' texts by name."""
    where = {name: header for header, text in headers.items() for name in constants(text)}
    listed = set(LISTED.findall(headers["agreed.h"]))
    bad = [
        (header, f"{name} is neither in WH_AGREED nor in tools/agreed.py with a reason")
        for name, header in where.items()
        if name not in listed and name not in OWN
    ]
    bad += [("agreed.h", f"{name} is in WH_AGREED but not defined") for name in listed - set(where)]
    bad += [("agreed.h", f"{name} is excused but not defined") for name in set(OWN) - set(where)]
    bad += [("agreed.h", f"{name} is both excused and listed") for name in set(OWN) & listed]
    return sorted(bad)
