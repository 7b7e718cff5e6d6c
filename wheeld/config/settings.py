"""The daemon's configuration: one dataclass, four sources.

A value comes from the command line, else from the environment (`WHEELD_CAPACITY=...`), else from a
TOML file, else from the defaults here.
"""

from __future__ import annotations

import grp
import os
import re
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from wheeld.config.pools import Pool, parse
from wheeld_core import _native
from wheeld_core.errors import WheelError
from wheeld_core.runtime import check_name

CONFIG_DIRECTORY = Path("/etc/wheeld")
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)\s*(ns|us|ms|s|m|h|d)")
_UNIT_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_UNIT_NS["d"] = 24 * _UNIT_NS["h"]
_SIZE = re.compile(r"([0-9]+)\s*([KMGT]?)")
_UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FIRST_BYTES = 8 << 20  # of slots that have memory from the start
_CHOICES = {"restore": ("remaining", "wall"), "misfire": ("fire", "skip")}


class ConfigError(WheelError):
    """A configuration value is wrong; the message names key, value and what is allowed."""


@dataclass(frozen=True)
class Config:
    """What a daemon is started with. All fields are also keys of the TOML file."""

    name: str = "default"
    capacity: int = 1 << 20
    """Slots, rounded up to whole slabs of 64; beside them there is a slab for each worker."""
    max_workers: int = 64
    max_per_worker: int | None = None
    """Slots that one worker may hold, rounded up to whole slabs of 64; None: all of them."""
    tick: str = "1ms"
    """The wheel's unit of time: a number with ns, us, ms or s."""
    wheel_size: int = 64
    """Buckets per level, rounded up to a power of two."""
    payload_bytes: int = 0
    """Bytes of payload per timer, rounded up to a multiple of 8."""
    reserve: bool = False
    """Reserve the memory of the whole capacity at the start; else as slots are needed."""
    runtime_dir: str | None = None
    virtual_clock: bool = False
    virtual_start: int = 0
    """Where a virtual clock begins, ns."""
    pin_cpu: int | None = None
    state_dir: str | None = None
    """Where snapshots go; None: there are none, and a restart of the host loses every timer."""
    snapshot_every: str = "10s"
    """How much time may pass between two snapshots: a duration, as the tick is."""
    restore: str = "remaining"
    """After a restart of the host: "remaining" gives a timer the time that it had left at the
    snapshot, "wall" counts the time that the host was down."""
    misfire: str = "fire"
    """What to do with a timer that fell due while the host was down: "fire" it now or "skip" it."""

    keep_for: str = "60s"
    """How long the timers of a worker that is kept wait for its successor, or those of a group's
    last member for another one: a duration up to a week."""
    hang_after: str = "5s"
    """A clock that makes no progress for so long is replaced."""
    evict_after: int | None = None
    """Kill a worker after so many submissions that no honest client makes; None: never."""
    group: str | None = None
    """Users in this group may use the daemon, too; default: the same user only."""
    admin_group: str | None = None
    """Those of them who are also in this one may stop it, and advance its virtual clock."""
    pools: tuple[str, ...] = ()
    """Memory pools, each `NAME=BYTES[,strict][,largest=BYTES]`; bytes may end with K, M or G."""
    trace: str | None = None
    """Directory in which every event is recorded as Parquet; None: nothing is."""
    trace_ring: int = 1 << 20
    """Events that can wait for the recorder, a power of two; what finds no room is counted."""
    trace_every: str = "60s"
    """How old events may be before they become a Parquet file: a duration."""
    trace_keep: str | None = None
    """Files of the trace that are older are removed: a duration, such as "7d"; None: none is."""
    trace_bytes: str | None = None
    """The oldest files are removed while all take more: bytes with K, M, G or T; None: none is."""

    @property
    def tick_ns(self) -> int:
        """The tick in nanoseconds."""
        return self._duration("tick", "1ns", "1ms")

    @property
    def snapshot_every_ns(self) -> int:
        """Nanoseconds between two snapshots."""
        return self._duration("snapshot_every", "10ms", "10s")

    @property
    def keep_for_s(self) -> float:
        """Seconds that a kept worker's timers wait."""
        return self._duration("keep_for", "1ms", "60s", "168h") / 1e9

    @property
    def hang_after_s(self) -> float:
        """Seconds without progress after which the clock is replaced."""
        return self._duration("hang_after", "100ms", "5s") / 1e9

    @property
    def gid(self) -> int | None:
        """Id of `group`."""
        return self._group_id("group")

    @property
    def admin_gid(self) -> int | None:
        """Id of `admin_group`."""
        return self._group_id("admin_group")

    def _group_id(self, key: str) -> int | None:
        name = getattr(self, key)
        if name is None:
            return None
        try:
            return grp.getgrnam(name).gr_gid
        except KeyError as error:
            raise ConfigError(f"{key} = {name!r}: there is no such group") from error

    @property
    def memory_pools(self) -> list[Pool]:
        """What `pools` says."""
        try:
            return parse(self.pools)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def trace_every_ns(self) -> int:
        """Age of events that become a Parquet file."""
        return self._duration("trace_every", "100ms", "60s", "24h")

    @property
    def trace_keep_ns(self) -> int | None:
        """Age of files of the trace that are removed."""
        if self.trace_keep is None:
            return None
        return self._duration("trace_keep", "1s", "7d", "36500d")

    @property
    def trace_most_bytes(self) -> int | None:
        """What the files of the trace may take."""
        if self.trace_bytes is None:
            return None
        match = _SIZE.fullmatch(self.trace_bytes.strip().upper())
        found = int(match[1]) * _UNIT_BYTES[match[2]] if match else 0
        if not 1 <= found < 1 << 60:
            raise ConfigError(
                f"trace_bytes = {self.trace_bytes!r}: expected bytes, such as '500M' or '10G'"
            )
        return found

    @property
    def trace_bits(self) -> int:
        """log2 of the trace ring's records."""
        return self.trace_ring.bit_length() - 1

    def _duration(self, key: str, least: str, example: str, most: str = "3600s") -> int:
        """The duration that field `key` holds, in ns: `least` to `most`."""
        value = getattr(self, key)
        found = _nanoseconds(value)
        if not _nanoseconds(least) <= found <= _nanoseconds(most):
            raise ConfigError(
                f"{key} = {value!r}: expected a duration from {least} to {most}, such as "
                f"{example!r}"
            )
        return int(found)

    @property
    def wheel_bits(self) -> int:
        """log2 of the buckets per level."""
        return max(1, (self.wheel_size - 1).bit_length())

    @property
    def slots(self) -> int:
        """The capacity in whole slabs."""
        return _rounded_up(self.capacity, _native.SLAB_SLOTS)

    @property
    def most_per_worker(self) -> int | None:
        """`max_per_worker` in whole slabs."""
        if self.max_per_worker is None:
            return None
        return _rounded_up(self.max_per_worker, _native.SLAB_SLOTS)

    @property
    def payload_room(self) -> int:
        """The payload in whole words."""
        return _rounded_up(self.payload_bytes, 8)

    @property
    def homes(self) -> int:
        """Slabs beyond the capacity, one for each worker that holds no other, so that none is
        without a slot when others have taken the wheel; 0 where they would be more than that."""
        return self.max_workers if self.max_workers * _native.SLAB_SLOTS <= self.slots else 0

    @property
    def shared_slabs(self) -> int:
        """Slabs that any worker may claim: all but the homes."""
        return self.slots // _native.SLAB_SLOTS

    @property
    def all_slots(self) -> int:
        """The capacity in whole slabs, and the homes."""
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
            notes.append("trace_keep and trace_bytes do nothing without trace")
        return notes

    def check(self) -> Config:
        """Return self, or raise ConfigError for the first value out of range."""
        try:
            check_name(self.name)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        ranges = {
            "capacity": (1, _native.MAX_CAPACITY),
            "max_workers": (1, _native.MAX_WORKERS),
            "wheel_size": (2, 1 << _native.MAX_WHEEL_BITS),
            "payload_bytes": (0, 65528),
            "virtual_start": (0, 2**63 - 1),
            "trace_ring": (1 << _native.MIN_TRACE_BITS, 1 << _native.MAX_TRACE_BITS),
        }
        for key, (low, high) in ranges.items():
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"{key} = {value}: expected {low} to {high}")
        cpus = os.sched_getaffinity(0)
        if self.pin_cpu is not None and self.pin_cpu not in cpus:
            raise ConfigError(f"pin_cpu = {self.pin_cpu}: expected one of {sorted(cpus)}")
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                expected = " or ".join(map(repr, allowed))
                raise ConfigError(f"{key} = {getattr(self, key)!r}: expected {expected}")
        for key in ("state_dir", "trace"):
            if getattr(self, key) == "":
                raise ConfigError(f"{key} = '': expected a directory")
        if self.trace_ring != 1 << self.trace_bits:
            raise ConfigError(
                f"trace_ring = {self.trace_ring}: expected a power of two, such as "
                f"{1 << (self.trace_bits + 1)}"
            )
        _ = self.tick_ns, self.snapshot_every_ns, self.keep_for_s, self.hang_after_s, self.gid
        if self.admin_gid is not None and self.group is None:
            raise ConfigError("admin_group: only who is in `group` as well can reach the daemon")
        _ = self.memory_pools, self.trace_every_ns, self.trace_keep_ns, self.trace_most_bytes
        for key in ("evict_after", "max_per_worker"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"{key} = {value}: expected 1 or more")
        return self


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _nanoseconds(duration: str) -> float:
    """A duration such as '1.5ms' in ns; 0 when it is none."""
    match = _DURATION.fullmatch(duration.strip())
    return float(match[1]) * _UNIT_NS[match[2]] if match else 0


def _convert(key: str, value: Any, source: str) -> Any:
    """`value` as the type of the field `key`."""
    annotation = str(next(field.type for field in fields(Config) if field.name == key))
    wanted = annotation.split(" ")[0]
    from_text = isinstance(value, str)
    if key == "pools":
        return _texts(key, value.split(";") if from_text else value, source)
    if wanted == "bool" and from_text and value.lower() in ("1", "true", "yes", "0", "false", "no"):
        return value.lower() in ("1", "true", "yes")
    if wanted == "int" and from_text and re.fullmatch(r"-?[0-9][0-9_]*", value):
        return int(value)
    kinds: dict[str, type] = {"int": int, "bool": bool, "str": str}
    if type(value) is kinds[wanted]:
        return value
    raise ConfigError(f"{source}: {key} = {value!r}: expected {wanted}")


def _texts(key: str, value: Any, source: str) -> tuple[str, ...]:
    """A list of texts; from one text, what is between the semicolons and is not empty."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{source}: {key} = {value!r}: expected a list of texts")
    return tuple(each.strip() for each in value if each.strip())


def _from_mapping(config: Config, values: dict[str, Any], source: str) -> Config:
    allowed = [field.name for field in fields(Config)]
    for key in values:
        if key not in allowed:
            raise ConfigError(f"{source}: unknown key {key!r}; allowed: {', '.join(allowed)}")
    return replace(config, **{key: _convert(key, value, source) for key, value in values.items()})


def _from_file(config: Config, path: Path) -> Config:
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return _from_mapping(config, values, str(path))


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
    given = {key: value for key, value in given.items() if value is not None}
    environment = {
        field.name: os.environ[f"WHEELD_{field.name.upper()}"]
        for field in fields(Config)
        if f"WHEELD_{field.name.upper()}" in os.environ
    }
    name = given.get("name") or environment.get("name") or Config.name
    config = Config()
    default_file = CONFIG_DIRECTORY / f"{name}.toml"
    if file is not None:
        config = _from_file(config, file)
    elif default_file.is_file():
        config = _from_file(config, default_file)
    config = _from_mapping(config, environment, "environment")
    return _from_mapping(config, given, "options").check()
