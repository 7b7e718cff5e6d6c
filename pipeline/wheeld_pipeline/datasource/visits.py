"""Visits: tasks of the reading query empty the lanes of the hosts where Spark runs them.

A lane can be opened only on its own host. The driver empties the lanes of its host. For other hosts
a batch has tasks without rows, before the tasks that read rows: each empties all lanes of the host
where it runs into their spools, in the journal that all hosts share. The events that it finds
become rows of a later batch, because a batch has its rows from its offsets, and these are known
before it runs.

Invariants
 1. A visit changes no batch: it may run twice, half or not at all. Each expiration is appended once
 to its lane's spool, even if processes die (lane.py), and has one position there. 2. Spark does not
 say where a task runs. The `visited.json` of a missed host lacks the visit's word; then the next
 visit has twice as many tasks. 3. A host that is missed for longer than its daemon keeps timers has
 lost them, which is reported.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from wheeld_client import Observer, WheelError
from wheeld_pipeline.datasource.journal import Journal, locked, read_json
from wheeld_pipeline.datasource.lane import Lane, lane_state
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json

MOST_TASKS: Final = 256
"""The most tasks of one visit; if a host was missed even so, the next visit starts with few
again."""
ROUNDS: Final = 9
"""How many visits a query that ends may make."""
COMPLAIN_SECONDS: Final = 60.0
_VISITED: Final = "visited.json"
log = logging.getLogger("wheeld")


@dataclass(frozen=True)
class Visit:
    """The last visit, as stored in the offsets; `word` is empty before the first one."""

    word: str = ""
    tasks: int = 0

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Visit:
        """The visit stored in an offset."""
        return cls(**offset.get("visit", {}))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def empty_lanes(journal: Journal, options: Options) -> None:
    """Empty each lane of this host that has expirations, or that must be opened now and then.

    Raises
    ------
    PipelineError
        This host has lanes, and their daemon does not answer, or has lost timers.
    """
    numbers = journal.lane_numbers()
    if not numbers:
        return
    try:
        with Observer(options.name, options.runtime_dir) as observer:
            waiting = [n for n in numbers if _wants(journal, n, options, observer)]
    except (WheelError, OSError) as error:
        raise PipelineError(f"host {journal.host}: {error}") from error

    def empty(number: int) -> None:
        lane = Lane.open(journal, number, options, 0)
        if lane is not None:  # else its holder empties it
            with lane:
                lane.drain(wait=True)

    with ThreadPoolExecutor() as pool:  # copying and writing let other threads run
        for _ in pool.map(empty, waiting):
            pass


def _wants(journal: Journal, number: int, options: Options, observer: Observer) -> bool:
    directory = journal.lane_directory(number)
    state = lane_state(directory)
    if state is None or state["left"] == 0:
        return False
    unread = observer.unread(journal.worker_name(options.worker, number))
    if unread or unread is None or state["left"] is None:
        return True
    kept = time.time() - _changed(directory)
    return kept > float(state["keep_for"]) / 4  # before the daemon drops them


def _changed(lane_directory: Path) -> float:
    return (lane_directory / "lane.json").stat().st_mtime


def visit(word: str, token: str, options: Options) -> None:
    """The work of a visit's task, on whichever host it runs.

    Raises
    ------
    PipelineError
        As `empty_lanes`; or this host does not see the journal.
    """
    journal = Journal(options.journal)
    if journal.token != token:
        raise PipelineError(
            f"host {journal.host}: {journal.directory} is another journal here than where the "
            "driver runs: with several hosts it must be on a file system that all of them share"
        )
    # One at a time: a second task must not report success while the first is still working.
    with locked(journal.lanes_directory / "visit.lock", options.lane_timeout) as mine:
        if mine and _last_word(journal, journal.host) != word:
            empty_lanes(journal, options)
            write_json(journal.lanes_directory / _VISITED, {"word": word})


def _last_word(journal: Journal, host: str) -> str:
    facts = read_json(journal.host_directory(host) / _VISITED)
    return "" if facts is None else str(facts["word"])


class Visits:
    """The driver's knowledge of other hosts, and when to visit them.

    Parameters
    ----------
    options : Options
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rounds = 0
        self._next = self._complain = 0.0
        self._missed: dict[str, float] = {}
        """When a host was first missed, monotonic seconds."""
        self._given_up: dict[str, float] = {}
        """For each host whose timers are lost, the change of its lanes that lost them."""

    def after(self, last: Visit, journal: Journal) -> Visit:
        """The next visit if one is due, else the last one.

        Raises
        ------
        PipelineError
            Timers of a host are lost.
        """
        if time.monotonic() < self._next:
            return last
        self._next = time.monotonic() + self._options.visit_interval
        hosts = self._with_timers(journal)
        return self._visit(last, self._note_missed(last, journal, hosts), hosts)

    def until_all(self, last: Visit, journal: Journal) -> Visit:
        """For a query that ends: a visit until no host is missed, or `ROUNDS` were too few."""
        hosts = self._with_timers(journal)
        missed = [host for host in hosts if _last_word(journal, host) != last.word]
        if self._rounds and (not missed or self._rounds == ROUNDS):
            if missed:
                _complain(journal, missed)
            return last
        self._rounds += 1
        return self._visit(last, missed if self._rounds > 1 else [], hosts)

    def _visit(self, last: Visit, missed: Collection[str], hosts: Collection[str]) -> Visit:
        if not hosts:
            return last
        tasks = last.tasks * 2 if missed and last.word else last.tasks
        if not 0 < tasks <= MOST_TASKS:
            tasks = min(2 * len(hosts), MOST_TASKS)
        return Visit(secrets.token_hex(4), tasks)

    def _with_timers(self, journal: Journal) -> dict[str, float]:
        """Other hosts with timers or unread expirations, and how long their daemons keep these."""
        found: dict[str, float] = {}
        for host in set(journal.hosts()) - {journal.host}:
            for number in journal.lane_numbers(host):
                directory = journal.lane_directory(number, host)
                state = lane_state(directory)
                if state is None or state["left"] == 0:
                    continue
                if _changed(directory) > self._given_up.get(host, 0.0):
                    found[host] = max(found.get(host, 0.0), float(state["keep_for"]))
        return found

    def _note_missed(self, last: Visit, journal: Journal, hosts: dict[str, float]) -> list[str]:
        """The events that the last visit missed, if there was one; raises when one has lost
        timers."""
        now = time.monotonic()
        missed = [host for host in hosts if last.word and _last_word(journal, host) != last.word]
        self._missed = {host: self._missed.get(host, now) for host in missed}
        for host, since in self._missed.items():
            if now - since > hosts[host]:
                self._lost(journal, host, hosts.pop(host))
        if missed and now > self._complain:
            if self._complain and last.tasks * 2 > MOST_TASKS:
                _complain(journal, missed)
            self._complain = now + COMPLAIN_SECONDS
        return missed

    def _lost(self, journal: Journal, host: str, kept: float) -> None:
        if self._options.fail_on_data_loss:
            raise PipelineError(
                f"host {host}: timers of {journal.directory} are lost: its daemon keeps them for "
                f"{kept:g} s (wheeld start --keep-for), and for so long no task of this query ran "
                "there; the option fail_on_data_loss=false goes on without them"
            )
        self._given_up[host] = time.time()


def _complain(journal: Journal, missed: Collection[str]) -> None:
    log.warning(
        "%s: no task of this query ran on %s, whose daemon has expirations for it: it must be "
        "among the executors",
        journal.directory,
        ", ".join(sorted(missed)),
    )
