"""The options of `connect`, and the message `hello` made of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import Final, Literal, TypedDict, cast, get_args

from wheeld_client.connection.reconnection import Announce
from wheeld_core import _native, control
from wheeld_core.arguments import Seconds, float_of, shown
from wheeld_core.control import messages as control_messages
from wheeld_core.control.messages import Welcome
from wheeld_core.runtime import GROUP_NAME_BYTES, WORKER_NAME_BYTES

OnDeath = Literal["drop", "keep", "reroute"]
AfterFork = Literal["raise", "reconnect"]
Start = Literal["never", "if-needed"]
MOST_SECONDS: Final = float(_native.MOST_SECONDS)
"""9.2e9, a little less than 2**63 ns: later times are saturated, and no socket can wait that
long."""

INNER: Final = frozenset({"numbered", "joined"})
"""Options that `connect` does not have."""


class MemberKeywords(TypedDict, total=False):
    """Keywords of `connect`, for type checkers, where the group is given by other means."""

    worker: str | None
    on_death: OnDeath
    after_fork: AfterFork
    reconnect_for: Seconds
    on_reconnect: Announce | None
    runtime_dir: str | os.PathLike[str] | None
    timeout: Seconds
    start: Start


class ConnectKeywords(MemberKeywords, total=False):
    group: str | None


@dataclass(frozen=True)
class ConnectOptions:
    """The options of `connect`, checked before anything is sent. TypeError: one of them is of
    another type. ValueError: one of them is not allowed, or needs another."""

    worker: str | None = None
    on_death: OnDeath = "drop"
    group: str | None = None
    after_fork: AfterFork = "raise"
    reconnect_for: float = 10.0
    timeout: float = 10.0
    numbered: bool = False
    """Set in a forked child: the daemon appends a number to the name."""
    on_reconnect: Announce | None = None
    start: Start = "never"
    joined: frozenset[str] = frozenset()
    """Groups that the worker joined while running (`ConnectedWorker._join`)."""

    def __post_init__(self) -> None:
        if self.worker is not None and not isinstance(self.worker, str):
            raise TypeError(f"worker={shown(self.worker)}: expected str, or None")
        _one_of("on_death", self.on_death, get_args(OnDeath))
        _one_of("after_fork", self.after_fork, get_args(AfterFork))
        _one_of("start", self.start, get_args(Start))
        if self.on_death == "keep" and self.worker is None:
            raise ValueError(
                'on_death="keep" needs worker=: the successor connects under that name'
            )
        if self.on_death == "reroute" and self.group is None:
            raise ValueError('on_death="reroute" needs group=: its members inherit the timers')
        if self.group is not None:
            _check_group(self.group)
        for option in ("reconnect_for", "timeout"):  # a program may also give timedeltas
            object.__setattr__(self, option, check_seconds(option, getattr(self, option)))
        if self.on_reconnect is not None and not callable(self.on_reconnect):
            raise TypeError(
                f"on_reconnect={shown(self.on_reconnect)}: expected a callable, or None"
            )
        if not 0 < self.timeout < MOST_SECONDS:
            raise ValueError(
                f"timeout={shown(self.timeout)}: expected seconds, above 0 and below 9.2e9"
            )

    def for_child(self) -> ConnectOptions:
        """Options for a forked child, which needs its own name; if it may have a successor, the
        next child can use that name."""
        if self.worker is None:
            return self
        if self.on_death == "keep":
            return replace(self, numbered=True)
        return replace(self, worker=with_suffix(self.worker, f"-{os.getpid()}"))

    def say_hello(self, directory: Path) -> tuple[control.Connection, Welcome]:
        """Connect to the daemon in `directory`; returns the connection and its answer."""
        connection, answer = control.greet(
            directory, self.timeout, over_restart=True, **self.hello()
        )
        return connection, cast(Welcome, answer)

    def hello(self) -> control.Message:
        return control_messages.hello(
            self.worker, self.on_death, self.group, self.numbered, self.joined
        )


def with_suffix(worker: str, suffix: str) -> str:
    """A name with something appended, cut where it would be too long."""
    stem = worker.encode()[: WORKER_NAME_BYTES - len(suffix)].decode(errors="ignore")
    return stem + suffix


def _one_of(option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{option}={shown(value)}: expected one of {', '.join(allowed)}")


def check_seconds(option: str, value: object) -> float:
    """The seconds of an option, a number or a timedelta."""
    if not isinstance(value, Real | timedelta):
        raise TypeError(f"{option}={shown(value)}: expected seconds, a number or a timedelta")
    seconds = float_of(value)
    if not seconds >= 0:
        raise ValueError(f"{option}={shown(value)}: expected seconds, 0 or more")
    return seconds


def _check_group(name: object) -> None:
    if not isinstance(name, str) or not can_be_group(name):
        raise ValueError(
            f"group name {shown(name)}: expected 1 to {GROUP_NAME_BYTES} bytes of UTF-8, printable"
        )


def can_be_group(name: str) -> bool:
    return name.isprintable() and 1 <= len(name.encode()) <= GROUP_NAME_BYTES
