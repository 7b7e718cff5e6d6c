"""The effects of many commands of many keys at once, in closed form.

The commands are sorted by key and sequence. The commands of one key with one sequence form a run.
At most one of them takes effect: the first if a timer is pending, else the first that is not a
reschedule. So a run sets "pending" to a constant, or leaves it. Before a run, "pending" has the
value that the last constant run made, else the value in the store.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow import machine
from wheeld_pipeline.overflow.batch.intake import Commands

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SCHEDULE: Final = machine.COMMANDS.index(machine.SCHEDULE)
CANCEL: Final = machine.COMMANDS.index(machine.CANCEL)
RESCHEDULE: Final = machine.COMMANDS.index(machine.RESCHEDULE)


class Effects(NamedTuple):
    """Numbers of commands, in their sorted order."""

    last: Ints
    """For each key, the last command that took effect; -1 if none did."""
    schedule: Ints
    """For each key, the last schedule that took effect."""
    overtaken: Ints
    """Commands older than the last one of their key."""
    idle: Ints
    """Commands that found nothing pending."""


def outcome(commands: Commands, generation: Ints, pending: Flags) -> Effects:
    """The commands that take effect, and those that are rejected. `generation` is the last sequence
    of each key, or -1 for an unknown key.
    """
    groups, keys = commands.groups, len(generation)
    before = generation[groups]
    newer = np.flatnonzero(commands.sequences > before)
    if len(groups) == keys:  # one command each
        effective, idle = _single(commands.ops[newer], pending[groups[newer]])
    else:
        effective, idle = _many(groups[newer], commands.sequences[newer], commands.ops[newer],
                                pending)  # fmt: skip
    done = newer[effective]
    last, schedule = np.full(keys, -1, np.int64), np.full(keys, -1, np.int64)
    last[groups[done]] = done  # of several the last one stays
    done = done[commands.ops[done] == SCHEDULE]
    schedule[groups[done]] = done
    return Effects(last, schedule, np.flatnonzero(commands.sequences < before), newer[idle])


def _single(ops: npt.NDArray[np.int8], pending: Flags) -> tuple[Flags, Flags]:
    idle = ~pending & (ops != SCHEDULE)
    return ~(idle & (ops == RESCHEDULE)), idle


def _many(
    groups: Ints, sequences: Ints, ops: npt.NDArray[np.int8], pending: Flags
) -> tuple[Flags, Flags]:
    """Whether each command takes effect, and whether it found nothing pending."""
    count = len(groups)
    effective, idle = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    if not count:
        return effective, idle
    new_group = np.r_[True, groups[1:] != groups[:-1]]
    new_run = new_group | np.r_[True, sequences[1:] != sequences[:-1]]
    starts, run = np.flatnonzero(new_run), np.cumsum(new_run) - 1
    numbers = np.arange(count)
    moves = ops == RESCHEDULE
    arms = np.minimum.reduceat(np.where(moves, count, numbers), starts)  # first that is no move
    none = arms == count
    cancels = ~none & (ops[np.minimum(arms, count - 1)] == CANCEL)
    constant = ~moves[starts] | (~none & ~cancels)
    makes = np.where(moves[starts], True, ~cancels)
    before = _before(constant, makes, np.flatnonzero(new_group[starts]), pending[groups[starts]])
    chosen = np.where(before, starts, arms)
    effective[chosen[chosen < count]] = True
    cancelled = (numbers == arms[run]) & (ops == CANCEL)
    return effective, ~before[run] & ((moves & (numbers < arms[run])) | cancelled)


def _before(constant: Flags, makes: Flags, firsts: Ints, pending: Flags) -> Flags:
    """Whether a timer was pending before each run; `firsts`: the first run of each key."""
    runs = len(constant)
    last = np.maximum.accumulate(np.where(constant, np.arange(runs), -1))
    last = np.r_[-1, last[:-1]]
    first = np.repeat(firsts, np.diff(np.r_[firsts, runs]))
    found: Flags = np.where(last >= first, makes[last], pending)
    return found
