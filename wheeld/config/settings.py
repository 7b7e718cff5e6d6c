"""The daemon's configuration: its options, read from four sources, and what follows from them.

A value comes from the command line, else from the environment (`WHEELD_CAPACITY=...`), else from a
TOML file, else from the defaults here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wheeld.config.declarations import OPTIONS, ConfigError as ConfigError, Declared, wrong
from wheeld.config.options import group_id
from wheeld.config.pools import Pool, parse
from wheeld_core import _native
from wheeld_core.units import parse_bytes, parse_duration

CONFIG_DIRECTORY = Path("/etc/wheeld")
_FIRST_BYTES = 8 << 20  # of slots that have memory from the start


@dataclass(frozen=True)
class Config(Declared):
    """The options of a daemon, and the quantities derived from them."""

    @property
    def introduction(self) -> dict[str, str]:
        return {"name": self.name, "log_format": self.log_format}

    @property
    def tick_ns(self) -> int:
        return parse_duration(self.tick)

    @property
    def snapshot_every_ns(self) -> int:
        return parse_duration(self.snapshot_every)

    @property
    def keep_for_s(self) -> float:
        return parse_duration(self.keep_for) / 1e9

    @property
    def hang_after_s(self) -> float:
        return parse_duration(self.hang_after) / 1e9

    @property
    def gid(self) -> int | None:
        return None if self.group is None else group_id(self.group)

    @property
    def admin_gid(self) -> int | None:
        return None if self.admin_group is None else group_id(self.admin_group)

    @property
    def memory_pools(self) -> list[Pool]:
        return parse(self.pools)

    @property
    def trace_every_ns(self) -> int:
        return parse_duration(self.trace_every)

    @property
    def trace_keep_ns(self) -> int | None:
        return None if self.trace_keep is None else parse_duration(self.trace_keep)

    @property
    def trace_most_bytes(self) -> int | None:
        return None if self.trace_bytes is None else parse_bytes(self.trace_bytes)

    @property
    def trace_bits(self) -> int:
        return self.trace_ring.bit_length() - 1

    @property
    def wheel_bits(self) -> int:
        return max(1, (self.wheel_size - 1).bit_length())

    @property
    def slots(self) -> int:
        return _rounded_up(self.capacity, _native.SLAB_SLOTS)

    @property
    def most_per_worker(self) -> int | None:
        if self.max_per_worker is None:
            return None
        return _rounded_up(self.max_per_worker, _native.SLAB_SLOTS)

    @property
    def payload_room(self) -> int:
        return _rounded_up(self.payload_bytes, 8)

    @property
    def homes(self) -> int:
        """Slabs beyond the capacity, one for each worker that holds no other, so that none is
        without a slot when others have taken the wheel; 0 where they would be more than that."""
        return self.max_workers if self.max_workers * _native.SLAB_SLOTS <= self.slots else 0

    @property
    def shared_slabs(self) -> int:
        return self.slots // _native.SLAB_SLOTS

    @property
    def all_slots(self) -> int:
        return self.slots + self.homes * _native.SLAB_SLOTS

    @property
    def first_slabs(self) -> int:
        """Slabs of the capacity that have memory from the start (`wheeld/shared/backing.h`)."""
        if self.reserve:
            return self.shared_slabs
        each = sum(size for part in _native.spans(0, 1, **self.native()) for _, size in part)
        return min(self.shared_slabs, max(1, _FIRST_BYTES // each))

    def native(self) -> dict[str, int]:
        """The arguments of `_native.geometry` and `_native.create`."""
        return {
            "capacity": self.all_slots,
            "homes": self.homes,
            "max_workers": self.max_workers,
            "tick_ns": self.tick_ns,
            "wheel_bits": self.wheel_bits,
            "payload_bytes": self.payload_room,
            "virtual_clock": int(self.virtual_clock),
        }

    def notes(self) -> list[str]:
        """What was rounded, in words."""
        notes = []
        if self.slots != self.capacity:
            notes.append(f"capacity {self.capacity} rounded up to {self.slots} (slabs of 64)")
        if self.most_per_worker != self.max_per_worker:
            notes.append(
                f"max_per_worker {self.max_per_worker} rounded up to {self.most_per_worker}"
                " (slabs of 64)"
            )
        if 1 << self.wheel_bits != self.wheel_size:
            notes.append(f"wheel_size {self.wheel_size} rounded up to {1 << self.wheel_bits}")
        if self.payload_room != self.payload_bytes:
            notes.append(f"payload_bytes {self.payload_bytes} rounded up to {self.payload_room}")
        if self.trace is None and (self.trace_keep or self.trace_bytes):
            notes.append("trace_keep and trace_bytes have no effect without trace")
        return notes


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class _Sources:
    """Values by key, collected from one source after another, and where each comes from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.names: dict[str, str] = {}

    def add(self, key: str, value: Any, source: str) -> None:
        """Set a value, replacing that of an earlier source."""
        if key not in OPTIONS:
            raise ConfigError(
                f"{source}: unknown key {key!r}{_like(key)}; allowed: {', '.join(OPTIONS)}"
            )
        try:
            self.values[key] = OPTIONS[key].read(value)
        except ValueError as error:
            raise wrong(key, value, error, source) from error
        self.names[key] = source

    def add_file(self, path: Path) -> None:
        """Add the values of a TOML file."""
        import tomllib  # most daemons have no file

        try:
            text = path.read_text("utf-8")
            values = tomllib.loads(text)
        except FileNotFoundError as error:
            raise ConfigError(f"{path}: no such file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
        for key, value in values.items():
            self.add(key, value, str(path) + _line_of(key, text))

    def config(self) -> Config:
        return replace(Config(), **self.values).check(self.names)


def _like(key: str) -> str:
    """A suggestion for an unknown key."""
    import difflib

    close = difflib.get_close_matches(key, OPTIONS, 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _line_of(key: str, text: str) -> str:
    found = re.search(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(key)}\b", text, re.MULTILINE)
    return f", line {text.count(chr(10), 0, found.start()) + 1}" if found else ""


def load(given: dict[str, Any], file: Path | None = None) -> Config:
    """The configuration from all sources.

    Parameters
    ----------
    given : dict
        What the caller gave itself; None stands for not given.
    file : Path, optional
        A TOML file; default: /etc/wheeld/<name>.toml if it exists.

    Raises
    ------
    ConfigError
        A key is unknown or a value is wrong.
    """
    sources = _Sources()
    name = given.get("name")
    if name is None:
        name = os.environ.get(OPTIONS["name"].variable) or Config.name
    default_file = CONFIG_DIRECTORY / f"{name}.toml"
    if file is not None or default_file.is_file():
        sources.add_file(file or default_file)
    for key, declared in OPTIONS.items():
        if declared.variable in os.environ:
            sources.add(key, os.environ[declared.variable], f"variable {declared.variable}")
    for key, value in given.items():
        if value is not None:
            flag = OPTIONS[key].flag if key in OPTIONS else key
            sources.add(key, value, f"option {flag}")
    return sources.config()
