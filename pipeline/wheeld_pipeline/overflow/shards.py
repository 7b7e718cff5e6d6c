"""Shards: the assignment of keys to the daemons that hold their near timers.

A shard is a part of the keys, and a task in each batch. Its timers go to a daemon on the host where
Spark runs that task.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from wheeld_pipeline.errors import UsageError

MOST_SHARDS: Final = 100_000


class Daemon(NamedTuple):
    """How a task reaches the daemon on its host."""

    name: str = "default"
    """Its name, or the path of its runtime directory."""
    runtime_dir: str | None = None
    host: str | None = None
    """The only host where it runs; None: each host has a daemon of that name."""


class ShardMap(NamedTuple):
    """The daemon of each shard."""

    daemons: tuple[Daemon, ...]

    @property
    def shards(self) -> int:
        return len(self.daemons)

    @classmethod
    def uniform(cls, shards: int, daemon: Daemon) -> ShardMap:
        if not 1 <= shards <= MOST_SHARDS:
            raise UsageError(f"{shards} shards: expected 1 to {MOST_SHARDS}")
        return cls((daemon,) * shards)

    def seen_from(self, environment: Mapping[str, str]) -> ShardMap:
        """Use the driver's WHEELD_RUNTIME_DIR, if set, for tasks too: their environment is that of
        Java."""
        usual = environment.get("WHEELD_RUNTIME_DIR")
        daemons = (d._replace(runtime_dir=d.runtime_dir or usual) for d in self.daemons)
        return ShardMap(tuple(daemons))

    @classmethod
    def read(cls, path: Path) -> ShardMap:
        """From a file of TOML or JSON.

        Raises
        ------
        PipelineError
            The file cannot be read, or does not give each shard one daemon; names file and field.

        Notes
        -----
        ::

            shards = 8

            [daemons.east]              # the name of the daemon, unless it says name = "..."
            shards = [0, 1, 2, 3]       # one daemon may leave this out: it has the others
            runtime_dir = "/run/wheeld" # default: the usual places
            host = "node-1"             # default: whichever host has the shard
        """
        try:
            text = path.read_text()
            said = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}; expected TOML, or JSON in a *.json") from error
        try:
            return cls(_assigned(said))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def _assigned(said: Any) -> tuple[Daemon, ...]:
    if not isinstance(said, Mapping):
        raise UsageError("expected a table with `shards` and `daemons`")
    shards, tables = said.get("shards"), said.get("daemons")
    if type(shards) is not int or not 1 <= shards <= MOST_SHARDS:
        raise UsageError(f"shards = {shards!r}: expected a number from 1 to {MOST_SHARDS}")
    if not isinstance(tables, Mapping) or not tables:
        raise UsageError("expected a table daemons.NAME for each daemon")
    owners: list[Daemon | None] = [None] * shards
    rest: Daemon | None = None
    for label, table in tables.items():
        daemon = _daemon(label, table)
        if "shards" not in table:
            if rest is not None:
                raise UsageError(f"daemons.{label}: only one daemon may leave out `shards`")
            rest = daemon
            continue
        for shard in _numbers(label, table["shards"], shards):
            if owners[shard] is not None:
                raise UsageError(f"daemons.{label}: shard {shard} has a daemon already")
            owners[shard] = daemon
    found = tuple(owner or rest for owner in owners)
    missing = [shard for shard, owner in enumerate(found) if owner is None]
    if missing:
        raise UsageError(f"shards {missing[:5]} have no daemon (of {len(missing)} such)")
    return tuple(owner for owner in found if owner is not None)


def _daemon(label: str, table: Any) -> Daemon:
    if not isinstance(table, Mapping):
        raise UsageError(f"daemons.{label}: expected a table")
    for field in table:
        if field not in (*Daemon._fields, "shards"):
            allowed = ", ".join((*Daemon._fields, "shards"))
            raise UsageError(f"daemons.{label}.{field}: expected one of {allowed}")
    texts = {field: table[field] for field in Daemon._fields if field in table}
    for field, value in texts.items():
        if not isinstance(value, str) or not value:
            raise UsageError(f"daemons.{label}.{field} = {value!r}: expected text")
    return Daemon(**{"name": label, **texts})


def _numbers(label: str, given: Any, shards: int) -> list[int]:
    good = isinstance(given, list) and all(type(n) is int and 0 <= n < shards for n in given)
    if not good:
        raise UsageError(
            f"daemons.{label}.shards = {given!r}: expected a list of numbers from 0 to {shards - 1}"
        )
    return list(given)
