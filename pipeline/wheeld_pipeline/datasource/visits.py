"""Visits: tasks of the reading query receive on the hosts where Spark runs them.

Expirations can be received on their host only. The driver does so for its own host. For the others
a batch has, before the tasks that read rows, tasks without rows: each receives what its host
has into the journal that all hosts share. The events that it finds become rows of a later batch,
because a batch has its rows from its offsets, and these are known before it runs.

Invariants
 1. A visit changes no batch: it may run twice, half or not at all (receiver.py).
 2. Spark does not say where a task runs. A host that was missed is known by its `visited.json`,
    which lacks the visit's word; then the next visit has twice as many tasks.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal, read_json
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.receiver import receive
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json

MOST_TASKS: Final = 256
"""The most tasks of one visit; if a host was missed even so, the next visit starts with few
again."""
ROUNDS: Final = 9
"""How many visits a query that ends may make."""
_VISITED: Final = "visited.json"
log = logging.getLogger("wheeld")


@dataclass(frozen=True)
class Visit:
    """The last visit, as stored in the offsets; `word` is empty before the first one."""

    word: str = ""
    tasks: int = 0

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Visit:
        return cls(**offset.get("visit", {}))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def visit(word: str, token: str, options: Options) -> None:
    """The work of a visit's task, on whichever host it runs.

    Raises
    ------
    PipelineError
        As `receive`; or this host does not see the journal.
    """
    journal = Journal(options.journal)
    if journal.token != token:
        raise PipelineError(
            f"host {journal.host}: {journal.directory} is another journal here than where the "
            "driver runs: with several hosts it must be on a file system that all of them share"
        )
    host = Host(journal)
    if host.account is None or _last_word(host) == word:
        return
    if receive(journal, options) is not None:  # else another task is at work
        write_json(host.directory / _VISITED, {"word": word})


def _last_word(host: Host) -> str:
    facts = read_json(host.directory / _VISITED)
    return "" if facts is None else str(facts["word"])


class Visits:
    """When the driver's query visits other hosts."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rounds, self._due = 0, 0.0

    def after(self, last: Visit, journal: Journal) -> Visit:
        """The next visit if one is due; else the last again."""
        if time.monotonic() < self._due:
            return last
        self._due = time.monotonic() + self._options.visit_interval
        hosts = _with_timers(journal)
        return _next(last, journal, _missed(hosts, last), hosts)

    def until_all(self, last: Visit, journal: Journal) -> Visit:
        """For a query that ends: make visits until no host is missed, at most `ROUNDS`."""
        hosts = _with_timers(journal)
        missed = _missed(hosts, last)
        if self._rounds and (not missed or self._rounds == ROUNDS):
            _complain(journal, missed)
            return last
        self._rounds += 1
        return _next(last, journal, missed if self._rounds > 1 else [], hosts)


def _next(last: Visit, journal: Journal, missed: list[Host], hosts: list[Host]) -> Visit:
    if not hosts:
        return last
    tasks = last.tasks * 2 if missed and last.word else last.tasks
    if tasks > MOST_TASKS:
        _complain(journal, missed)
    if not 0 < tasks <= MOST_TASKS:
        tasks = min(2 * len(hosts), MOST_TASKS)
    return Visit(secrets.token_hex(4), tasks)


def _with_timers(journal: Journal) -> list[Host]:
    """Other hosts where something is pending, or waits to be received."""
    others = [Host(journal, name) for name in journal.hosts() if name != journal.host]
    return [host for host in others if host.owed]


def _missed(hosts: list[Host], last: Visit) -> list[Host]:
    return [host for host in hosts if _last_word(host) != last.word]


def _complain(journal: Journal, missed: list[Host]) -> None:
    if missed:
        log.warning(
            "%s: no task of this query ran on %s, whose daemon has expirations for it: it must be "
            "among the executors",
            journal.directory,
            ", ".join(host.name for host in missed),
        )
