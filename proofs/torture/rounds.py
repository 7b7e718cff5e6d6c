"""A round: load and faults, then rest, then the account; and at the end of a row the search for
what leaked.

Rest is reached in steps: all seats are taken again; workers only receive until everything that was
due has come, each living periodic timer included; what is left must be what the wheel calls
pending; that is cancelled, by all workers together; then nothing may come any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proofs.torture import account, common_account, history, sharing_account
from proofs.torture.account import Verdict
from proofs.torture.daemon import CAPACITY, KEEP_SECONDS
from proofs.torture.drive import Drive
from proofs.torture.faults import Fault
from proofs.torture.history import NEVER, Birth, Death, History
from proofs.torture.ledger import COMMON, ORDERS, PROBE, SEATS, Command, Kind
from proofs.torture.sharing import Desk

SHORT_NS: Final = 900_000_000
"""Seconds after which nothing falls due for the first time; see common.SHORT_SECONDS."""
STILL_SECONDS: Final = 1.5
"""Seconds without any change after which missing events count as lost."""
REST_SECONDS: Final = 20.0
AFTER_NS: Final = 2_000_000_000
MOST_STORIES: Final = 3
"""Histories shown per reason and round."""


def run(drive: Drive, fault: Fault, count: int, tell: Callable[[int], None]) -> int:
    """One round with `count` faults or a few more; returns how many it were."""
    with closing(Desk(drive.crew.daemon)) as desk:
        due = desk.begin()
    drive.command(Command.RUN)
    epoch, allowed = drive.daemon.header("epoch"), drive.epochs
    drive.pause(0.3)
    done = 0
    while done < count:
        done += fault.inject(drive)
        tell(done)
    rest(drive, due)
    more = drive.daemon.header("epoch") - epoch - (drive.epochs - allowed)
    if more > 0:
        drive.verdict.add(
            "crashed", f"{more} clocks ended that nobody killed; see the daemon's log"
        )
    count_ends(drive)
    return done


def count_ends(drive: Drive) -> None:
    for what in drive.crew.crashed:
        drive.verdict.add("crashed", what)
    for what in drive.crew.hung:
        drive.verdict.add("hung", what)
    drive.crew.crashed.clear()
    drive.crew.hung.clear()


def rest(drive: Drive, due: npt.NDArray[np.int64]) -> None:
    drive.wait(drive.all_resumed)
    drive.command(Command.DRAIN)
    since = time.monotonic_ns()
    drive.pause(SHORT_NS / 1e9)
    verdict = Verdict()
    left, unsure = _await_the_due(drive, since, verdict)
    next_due = _end_jobs(drive)
    if not drive.wait(lambda: not len(drive.daemon.overdue()), REST_SECONDS):
        reason = "overdue by its own slot when all is quiet"
        verdict.add("lost", reason, drive.daemon.overdue())
    _compare(drive, left["cookie"], unsure["cookie"], verdict)
    orders = np.concatenate([left, unsure])
    known = (orders["id"] != 0) | (orders["cookie"] & np.uint64(COMMON) != 0)
    orders = orders[known][:ORDERS]
    drive.memory.orders["cookie"][: len(orders)] = orders["cookie"]
    drive.memory.orders["id"][: len(orders)] = orders["id"]
    drive.memory.board["orders"] = len(orders)
    drive.command(Command.CANCEL)
    drive.command(Command.QUIET)
    drive.pause(0.2)
    # whose owners died before they could note the ids: nobody can cancel them
    lost = unsure["cookie"][(unsure["id"] == 0) & (unsure["cookie"] & np.uint64(COMMON) == 0)]
    drive.stale = np.concatenate([drive.stale, lost])
    _compare(drive, drive.stale[:0], drive.stale, verdict)
    found = _history(drive)
    own = int(found.of(Kind.QUIET)["a"].sum())
    if own != (pending := drive.daemon.status()["pending"]):
        reason = f"{own} timers are pending, say the workers; {pending}, says the daemon"
        verdict.add("leaked", reason)
    if not drive.wait(lambda: not drive.daemon.kept(), REST_SECONDS):
        verdict.add("leaked", f"when nothing is pending: {drive.daemon.kept()}")
    verdict.merge(account.judge(found, drive.daemon.outages))
    verdict.merge(common_account.judge(found))
    verdict.merge(sharing_account.judge(found, due, next_due))
    _tell_stories(drive, found, verdict)
    drive.verdict.merge(verdict)
    drive.memory.clear()
    drive.daemon.outages.clear()
    drive.crew.forget()
    drive.births = [birth for birth in found.births if birth.life in drive.crew.lives]


def _compare(
    drive: Drive, must: npt.NDArray[np.uint64], may: npt.NDArray[np.uint64], verdict: Verdict
) -> None:
    armed = drive.daemon.armed()
    verdict.add("lost", "armed by the ledgers, but not in the wheel", must[~np.isin(must, armed)])
    known = np.concatenate([must, may, drive.stale])
    verdict.add(
        "leaked", "over by the ledgers, but armed in the wheel", armed[~np.isin(armed, known)]
    )
    if len(armed) != (pending := drive.daemon.status()["pending"]):
        verdict.add(
            "leaked", f"{len(armed)} slots are armed; {pending} are pending, says the daemon"
        )


def _tell_stories(drive: Drive, found: History, verdict: Verdict) -> None:
    """Keep the whole history of the first offending timers, while there are ledgers."""
    origin = int(found.records["time"].min()) if len(found.records) else 0
    told: dict[str, int] = {}
    for offence in verdict.offences:
        if told.get(offence.reason, 0) >= MOST_STORIES:
            continue
        told[offence.reason] = told.get(offence.reason, 0) + 1
        lines = [f"{offence.counter}: {offence.reason} {offence.detail}".rstrip()]
        if not offence.cookie:
            drive.stories.append(lines[0])
            continue
        lines.append(f"  timer {offence.cookie:#x}")
        lines += ["  " + line for line in found.story(offence.cookie, origin)]
        lines += ["  in its slot: " + line for line in found.neighbours(offence.cookie, origin)]
        lines += _surroundings(drive, found, offence.cookie, origin)
        drive.stories.append("\n".join(lines))


def _surroundings(drive: Drive, found: History, cookie: int, origin: int) -> list[str]:
    """The deaths of those who had to do with a timer, and the outages while it lived."""
    at, known = found.find(np.array([cookie], np.uint64))
    its = found.records["cookie"] == cookie
    begin, end = found.records["time"][its].min(), found.records["time"][its].max() + AFTER_NS
    seats = np.isin(np.arange(SEATS), found.seats[its])
    if known[0]:
        timer = found.timers[at[0]]
        begin, end = int(timer["noted"]), int(timer["earliest"]) + AFTER_NS
        seats = np.array(account.receivers(int(timer["seat"]), int(timer["target"])))
    lines = [
        f"  {(death.killed - origin) / 1e9:.6f} seat {death.seat} life {death.life} killed, gone "
        f"at {(death.ended - origin) / 1e9:.6f}, up to {death.taken} events taken, "
        f"next at {(death.reborn - origin) / 1e9:.6f}, took over: {death.adopted}"
        for death in found.deaths
        if seats[death.seat] and begin <= death.ended and death.killed <= end
    ]
    lines += [
        f"  {(outage.began - origin) / 1e9:.6f} {outage.what} away until "
        f"{(outage.until - origin) / 1e9:.6f}"
        for outage in drive.daemon.outages
        if outage.began <= end and (not outage.until or outage.until >= begin)
    ]
    return lines


def _await_the_due(
    drive: Drive, since: int, verdict: Verdict
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Wait until all that was due was received. Returns the timers that must be armed, and those
    that may be."""
    give_up = time.monotonic() + REST_SECONDS
    last, changed = -1, time.monotonic()
    while True:
        found = _history(drive)
        must, may = account.open_timers(found)
        timers = found.timers
        periodic = timers["interval"] > 0
        due = must & ~periodic & (timers["earliest"] < time.monotonic_ns())
        may |= due & (timers["latest"] == NEVER)  # or moved far away, by one that did not live
        must &= ~may
        due &= must
        beating = must & periodic
        silent = beating.copy()
        silent[beating] = account.silent(found, timers["cookie"][beating], since)
        common, perhaps, late, mute = common_account.open_timers(found, time.monotonic_ns(), since)
        waiting = int(due.sum() + silent.sum()) + late + len(mute)
        if waiting != last:
            last, changed = waiting, time.monotonic()
        now = time.monotonic()
        if not waiting or now - changed > STILL_SECONDS or now > give_up:
            break
        drive.pause(0.1)
    quiet = [*timers["cookie"][silent], *mute]
    verdict.add("lost", "a periodic timer that no longer ticks", quiet)
    may &= periodic | (timers["earliest"] > time.monotonic_ns()) | (timers["latest"] == NEVER)
    left = np.concatenate([_orders(found, must & ~due), common])
    return left, np.concatenate([_orders(found, may), perhaps])


def _end_jobs(drive: Drive) -> npt.NDArray[np.int64]:
    """Wait until the jobs have run all that was due, and end them. Returns when each would have
    been due next."""
    with closing(Desk(drive.crew.daemon)) as desk:
        drive.wait(desk.stop, REST_SECONDS)
        drive.wait(lambda: not sharing_account.open_tasks(_history(drive)), REST_SECONDS)
        drive.command(Command.IDLE)
        return desk.end()


def _orders(found: History, which: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Cookies and ids; the id of a timer whose owner did not live to note it may be in an event."""
    timers = found.timers[which][["cookie", "id"]].copy()
    events = found.of(Kind.EVENT)
    ids = dict(zip(events["cookie"].tolist(), events["id"].tolist(), strict=True))
    for row in np.flatnonzero(timers["id"] == 0).tolist():
        timers["id"][row] = ids.get(int(timers["cookie"][row]), 0)
    return timers


def _history(drive: Drive) -> History:
    found = history.read(drive.memory)
    births, seats = found.of(Kind.BORN), found.seats_of(Kind.BORN)
    found.births = drive.births + [
        Birth(int(birth["life"]), int(seat), int(birth["time"]), bool(birth["a"]))
        for birth, seat in zip(births, seats, strict=True)
    ]
    for life in drive.crew.lives.values():
        if not life.gone:
            continue
        own = found.records[found.records["life"] == life.number]
        death = Death(life.number, life.seat, life.killed, life.ended, _taken(own))
        later = [birth for birth in found.births if birth.seat == life.seat]
        for birth in [birth for birth in later if birth.life > life.number][:1]:
            death.successor, death.reborn, death.adopted = birth.life, birth.time, birth.adopted
        found.deaths.append(death)
    return found


def _taken(own: npt.NDArray[Any]) -> int:
    """How many events a life can have received without noting them."""
    for record in own[::-1]:
        if record["kind"] == Kind.POLL:
            return int(record["a"])
        if record["kind"] in (Kind.EVENT, Kind.POLLED, Kind.ARMED, Kind.SCHEDULE):
            return 0
    return 0


# -- the end of a row ------------------------------------------------------------------------------


def look_for_leaks(drive: Drive) -> None:
    """Make all workers leave, and check that everything is as it was before the first one came."""
    drive.command(Command.LEAVE)
    drive.wait(lambda: not drive.crew.living())
    limit = KEEP_SECONDS + REST_SECONDS
    drive.wait(lambda: not drive.daemon.rows(), limit)
    left = [f"worker {name}" for name in drive.daemon.rows()]
    pending = drive.daemon.status()["pending"]
    if pending:
        left.append(f"{pending} pending timers")
    left += drive.daemon.workers_files()
    # connections that were closed just now take the supervisor a moment
    drive.wait(lambda: drive.daemon.descriptors() <= drive.descriptors, REST_SECONDS)
    fds = drive.daemon.descriptors()
    if fds > drive.descriptors:
        left.append(f"{fds - drive.descriptors} descriptors of the supervisor")
    if len(drive.daemon.children()) != 1:
        left.append(f"children of the supervisor: {drive.daemon.children()}")
    for what in left:
        drive.verdict.add("leaked", what)
    _probe(drive)
    for what in drive.daemon.finish():
        drive.verdict.add("leaked", what)


def _probe(drive: Drive) -> None:
    drive.crew.bear(PROBE)
    drive.wait(lambda: not drive.crew.coming() and not drive.crew.living())
    answers = drive.memory.records(PROBE)
    fitted = int(answers[-1]["a"]) if len(answers) else 0
    if fitted != CAPACITY:
        reason = f"{CAPACITY - fitted} slots: a newcomer found room for {fitted} of {CAPACITY}"
        drive.verdict.add("leaked", reason)
