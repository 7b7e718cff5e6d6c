"""The life of one key: the state machine of the overflow, free of Spark and of clocks.

It is the definition. `batch/step.py` runs the same for all keys of a batch in columns, and random
tests hold the two against each other.

    schedule           due within the horizon        the wheel says that it fired
    -------> WAITING -----------------------> HANDED ----------------------------> ENDED -> gone
                ^                               |  ^                                 ^
                +-- the wheel would not have it-+  +- nothing was heard: hand out    |
                                                      again                          |
                cancel, at any time ---------------------------------------------- --+

Invariants
 1. A timer's generation is the sequence number of the command that made it. It grows with each
    command of a key, so (key, generation) names one expiration for ever, also after the key was
    forgotten and used again.
 2. `Expired` is returned once per generation: it ends the entry, and only what is waiting or handed
    out expires.
 3. `Expired` needs a wheel that fired at or after the deadline: never early.
 4. A waiting or handed entry always has a wake-up: nothing is forgotten because a host died.
 5. The same entry and event give the same result: a batch that is run again repeats itself.
"""

from __future__ import annotations

from typing import NamedTuple

from wheeld_pipeline.overflow.machine import CANCEL, ENDED, HANDED, RESCHEDULE, WAITING, Rules


class Entry(NamedTuple):
    phase: int
    generation: int
    """Ended: the sequence number of the last command."""
    deadline_us: int
    wake_ms: int
    """When `wake` is due."""
    key: str | None
    cookie: int
    payload: bytes | None


class Command(NamedTuple):
    """A user's command for a key."""

    op: str
    sequence: int
    deadline_us: int
    """Cancel ignores it."""
    key: str
    cookie: int = 0
    payload: bytes | None = None


class HandOut(NamedTuple):
    """To the wheel: fire at the deadline."""

    generation: int
    deadline_us: int


class Withdraw(NamedTuple):
    """To the wheel: cancel this timer, if it has not fired yet."""

    generation: int


class Expired(NamedTuple):
    """To the sink; once per key and generation."""

    entry: Entry
    fired_us: int


class Rejected(NamedTuple):
    """To its sender: the command had no effect."""

    command: Command
    reason: str


Output = HandOut | Withdraw | Expired | Rejected
Step = tuple[Entry | None, list[Output]]


def obey(entry: Entry | None, command: Command, now_ms: int, rules: Rules) -> Step:
    """A command arrived.

    Parameters
    ----------
    entry : Entry or None
        What is known of the key; None: nothing.
    command : Command
        Older than the last one of its key: rejected. The same again: ignored.
    now_ms : int
        Wall clock.
    rules : Rules

    Returns
    -------
    (Entry or None, list)
        What is known then, and what to do.
    """
    if entry is not None and command.sequence <= entry.generation:
        if command.sequence == entry.generation:
            return entry, []
        newer = f"sequence {command.sequence} was overtaken by {entry.generation}"
        return entry, [Rejected(command, newer)]
    pending = entry is not None and entry.phase != ENDED
    if command.op == CANCEL:
        done: list[Output] = _withdrawal(entry)
        if not pending:
            done.append(Rejected(command, "nothing is pending under this key"))
        return _ended(command.sequence, now_ms, rules), done
    if command.op == RESCHEDULE:
        if entry is None or not pending:
            return entry, [Rejected(command, "nothing is pending under this key")]
        command = command._replace(cookie=entry.cookie, payload=entry.payload)
    return _armed(command, now_ms, rules, _withdrawal(entry))


def wake(entry: Entry, now_ms: int, rules: Rules) -> Step:
    if now_ms < entry.wake_ms:
        return entry, []
    if entry.phase == ENDED:
        return None, []
    return _handed(entry, now_ms, rules, [])


def acknowledge(
    entry: Entry | None, generation: int, fired_us: int, now_ms: int, rules: Rules
) -> Step:
    """A wheel reports that it fired this generation; it may do so more than once, and late."""
    if entry is None or entry.phase == ENDED or generation != entry.generation:
        return entry, []
    if fired_us < entry.deadline_us:
        return entry, []  # never early, whatever a wheel says; the wake-up hands it out again
    return _ended(generation, now_ms, rules), [Expired(entry, fired_us)]


def refuse(entry: Entry | None, generation: int, now_ms: int, rules: Rules) -> Step:
    """This generation did not get into a wheel: none was there, or it was full."""
    if entry is None or entry.phase != HANDED or generation != entry.generation:
        return entry, []
    # The nearer to its deadline, the sooner: a wheel that is away must not keep the state busy.
    quarter_ms = abs(entry.deadline_us // 1000 - now_ms) // 4
    wait_ms = max(min(quarter_ms, rules.grace_ms), rules.retry_ms, 1)
    return entry._replace(phase=WAITING, wake_ms=now_ms + wait_ms), []


def _withdrawal(entry: Entry | None) -> list[Output]:
    handed = entry is not None and entry.phase == HANDED
    return [Withdraw(entry.generation)] if entry is not None and handed else []


def _ended(sequence: int, now_ms: int, rules: Rules) -> Entry:
    wake_ms = now_ms + max(rules.remember_ms, 1)
    return Entry(ENDED, sequence, 0, wake_ms, None, 0, None)


def _armed(command: Command, now_ms: int, rules: Rules, done: list[Output]) -> Step:
    entry = Entry(
        WAITING,
        command.sequence,
        command.deadline_us,
        command.deadline_us // 1000 - rules.horizon_ms,
        command.key,
        command.cookie,
        command.payload,
    )
    if entry.wake_ms <= now_ms:
        return _handed(entry, now_ms, rules, done)
    return entry, done


def _handed(entry: Entry, now_ms: int, rules: Rules, done: list[Output]) -> Step:
    wake_ms = max(-(-entry.deadline_us // 1000), now_ms) + max(rules.grace_ms, 1)
    handed = entry._replace(phase=HANDED, wake_ms=wake_ms)
    return handed, [*done, HandOut(entry.generation, entry.deadline_us)]
