"""Host: what a host's daemon owes the journal.

    account.json             the daemon and its wheel, and how many rows were scheduled there
    lock                     held to change it
    scheduling               shared by the tasks that schedule there
    visited.json             the last visit of the reading query (visits.py)
    POSITION-ROWS.arrow      what was received (spool.py)

The account may be too high, since a task that dies in the middle counts a chunk twice, and since
anybody may cancel timers. So whoever finds that nothing waits for the stream sets it right, when no
task schedules.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from wheeld_client import WheelError, connect
from wheeld_pipeline.datasource.journal import Journal, read_json
from wheeld_pipeline.datasource.spool import Spool
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import locked, write_json

if TYPE_CHECKING:
    from wheeld_client import Timers
    from wheeld_pipeline.datasource.options import Options


@dataclass(frozen=True)
class Account:
    """`rows` for the stream since the journal began; `sent` to other targets, of which the last is
    due at `until`, seconds of the wall clock."""

    daemon: str
    wheel: int
    rows: int = 0
    sent: int = 0
    until: float = 0.0


class Host:
    """One host in a journal; by default the one that this process runs on."""

    def __init__(self, journal: Journal, name: str | None = None) -> None:
        self.journal, self.name = journal, name or journal.host
        self.directory = journal.host_directory(self.name)
        self.spool = Spool(self.directory)

    @property
    def account(self) -> Account | None:
        """None: nothing was scheduled there yet."""
        facts = read_json(self.directory / "account.json")
        return None if facts is None else Account(**facts)

    @property
    def owed(self) -> int:
        """At most so many rows were scheduled for the stream there and not received."""
        account = self.account
        return 0 if account is None else max(0, account.rows - self.spool.bounds()[1])

    @contextlib.contextmanager
    def connected(self, options: Options, worker: str | None = None) -> Iterator[Timers]:
        """A worker of this host's daemon, whose errors name the host.

        Raises
        ------
        PipelineError
            There is none, it is not the journal's, or it has lost timers.
        """
        with (
            self.named(),
            connect(options.name, worker=worker, runtime_dir=options.runtime_dir) as timers,
        ):
            self._check(timers, options)
            yield timers

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Errors of the daemon name the host."""
        try:
            yield
        except PipelineError:
            raise
        except (WheelError, OSError) as error:
            raise PipelineError(f"host {self.name}: {error}") from error

    def _check(self, timers: Timers, options: Options) -> None:
        here = Account(str(timers.directory.resolve()), timers.wheel_token)
        with self._changing():
            account = self.account or self._put(here)
            if account.daemon != here.daemon:
                raise PipelineError(
                    f"host {self.name}: the journal {self.journal.directory} is of the daemon in "
                    f"{account.daemon}, not of the one in {here.daemon}: give each daemon a journal"
                )
            if account.wheel == here.wheel:
                return
            lost = self.owed + (account.sent if account.until > time.time() else 0)
            if lost and options.fail_on_data_loss:
                raise PipelineError(
                    f"host {self.name}: up to {lost} timers of {self.directory} are lost: the "
                    "daemon has another wheel than the journal: it was started afresh, or the "
                    "journal is another daemon's; the option fail_on_data_loss=false continues "
                    "without them"
                )
            self._put(replace(here, rows=self.spool.bounds()[1]))

    def _changing(self) -> contextlib.AbstractContextManager[bool]:
        return locked(self.directory / "lock", math.inf)

    def _put(self, account: Account) -> Account:
        write_json(self.directory / "account.json", asdict(account))
        return account

    def scheduling(self) -> contextlib.AbstractContextManager[bool]:
        """As long as it is open, nobody takes timers on their way for missing ones."""
        return locked(self.directory / "scheduling", math.inf, fcntl.LOCK_SH)

    def note(self, rows: int, until: float | None = None) -> None:
        """So many more were scheduled: for the stream, or for another target `until` then."""
        with self._changing():
            account = self.account
            assert account is not None
            if until is None:
                self._put(replace(account, rows=account.rows + rows))
            else:
                sent = account.sent if account.until > time.time() else 0
                until = max(until, account.until)
                self._put(replace(account, sent=sent + rows, until=until))

    def settle(self, awaits_nothing: Callable[[], bool]) -> None:
        """Set the account right if nothing waits for the stream."""
        with locked(self.directory / "scheduling", 0) as mine:
            if mine and self.owed and awaits_nothing():
                self.note(-self.owed)
