"""The daemon's configuration: its options, read from four sources, and values derived from them.

A value comes from the command line, else from the environment (`WHEELD_CAPACITY=...`), else from a
TOML file, else from the defaults here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from wheeld.config import addresses
from wheeld.config.options import group_id, option, options_of
from wheeld.config.pools import Pool, parse
from wheeld_core import _native
from wheeld_core.errors import UsageError, WheelError
from wheeld_core.units import parse_bytes, parse_duration

CONFIG_DIRECTORY = Path("/etc/wheeld")
_FIRST_BYTES = 8 << 20  # of slots that have memory from the start
_FIRST_CHUNKS = 8


class ConfigError(UsageError):
    """A configuration value is wrong; the message names source, key, value and what is allowed."""


@dataclass(frozen=True)
class Config:
    """The options of a daemon, each declared once, and values derived from them."""

    name: str = option("name", "default", "Name of the daemon.", section="Place")
    runtime_dir: str | None = option(
        "directory", None, "Directory that holds the runtime directory.",
        unset="/run/wheeld, else a directory of the user",
    )  # fmt: skip

    capacity: int = option(
        "integer", 1 << 20, "How many timers it can hold.",
        more="Rounded up to whole slabs of 64 slots; a slot takes 64 bytes of /dev/shm and a little"
        " more. A worker that holds no other slots has a slab of its own.",
        least=1, most=_native.MAX_CAPACITY, section="Wheel",
    )  # fmt: skip
    max_workers: int = option(
        "integer", 64, "How many processes can connect.", least=1, most=_native.MAX_WORKERS
    )
    max_per_worker: int | None = option(
        "integer", None, "Most slots for one worker.",
        more="This keeps one worker from filling the wheel. Rounded up to whole slabs of 64.",
        least=1, example=100_000, unset="all", live=True,
    )  # fmt: skip
    tick: str = option(
        "duration", "1ms", "Resolution of the wheel, such as 1ms.",
        more="A timer fires at most one tick late, plus the wake-up by the"
            " kernel. A tick with only a few timers fires each at its own"
            " deadline.",
        least="1ns", most="3600s",
    )  # fmt: skip
    wheel_size: int = option(
        "integer", 64, "Buckets per level.", more="Rounded up to a power of two.",
        least=2, most=1 << _native.MAX_WHEEL_BITS,
    )  # fmt: skip
    payload_bytes: int = option(
        "integer", 0, "Payload bytes per timer that need no heap.",
        more="Each slot has this many bytes, used or not. Payloads up to "
            "this size are the fastest; larger ones go to the payload "
            "heap. Rounded up to a multiple of 8.",
        least=0, most=65528,
    )  # fmt: skip
    max_payload: str = option(
        "size", "64K", "Largest payload.",
        more="At most 16M. A larger one is refused with PayloadTooLarge.",
        least="0", most="16M", example="1M",
    )  # fmt: skip
    payload_heap: str = option(
        "size", "256M", "Memory for the payloads of all timers.",
        more="It is taken from /dev/shm as it is needed, in steps of 1 MiB. Payloads that find no"
        " room are refused with PayloadHeapFull. Rounded up to chunks of 64 KiB.",
        least="0", most="256G", example="1G",
    )  # fmt: skip
    reserve: bool = option(
        "switch", False, "Reserve the memory of the whole capacity at the start.",
        unset="as slots are needed", given_as="--reserve/--no-reserve",
    )  # fmt: skip

    pin_cpu: int | None = option(
        "integer", None, "Pin the clock process to this CPU.", section="Clock", example=1
    )
    hang_after: str = option(
        "duration", "5s", "Replace a clock that hangs for this long.",
        least="100ms", most="3600s", live=True,
    )  # fmt: skip
    virtual_clock: bool = option(
        "switch",
        False,
        "Time moves only by `wheeld advance`.",
        unset="off",
        given_as="--virtual-clock",
    )
    virtual_start: int = option(
        "integer", 0, "Start of a virtual clock, ns.", least=0, most=2**63 - 1
    )

    state_dir: str | None = option(
        "directory", None, "Directory for snapshots, so that timers survive a reboot.",
        more="Without it, a stop or a restart of the host drops pending timers.",
        example="/var/lib/wheeld/NAME", unset="none", section="Snapshots",
    )  # fmt: skip
    snapshot_every: str = option(
        "duration", "10s", "Time between snapshots.", least="10ms", most="3600s", live=True
    )
    restore: str = option(
        "choice", "remaining", "wall: the time that the host was down counts; remaining: it does"
        " not.",
        more="With remaining, a timer has the time left that it had at the snapshot.",
        choices=("remaining", "wall"),
    )  # fmt: skip
    misfire: str = option(
        "choice", "fire", "fire or skip timers that fell due while the host was down.",
        choices=("fire", "skip"),
    )  # fmt: skip

    keep_for: str = option(
        "duration", "60s", "How long timers wait for a worker to come back.",
        more="This applies to a worker with on_death='keep', to a group without members, and to the"
        " ends of detached timers.",
        least="1ms", most="168h", live=True, section="Workers",
    )  # fmt: skip
    detached_capacity: int | None = option(
        "integer", None, "How many detached timers may be pending.",
        more="It keeps processes that schedule and end, again and again, "
            "from filling the wheel. Further ones are refused with "
            "DetachedFull.",
        least=0, most=_native.MAX_CAPACITY, example=100_000, unset="half of --capacity",
    )  # fmt: skip
    idle_exit: str | None = option(
        "duration", None, "End when nobody has used the daemon for this long, such as 5m.",
        more="It is in use while a worker is connected, while timers or their ends wait, and while"
        " a command such as `wheeld top` watches it.",
        least="10ms", most="36500d", example="5m", unset="never",
    )  # fmt: skip
    evict_after: int | None = option(
        "integer", None, "Kill a worker after this many offences.",
        more="An offence is a submission that a correct client never makes.",
        least=1, example=1_000_000, unset="never", live=True,
    )  # fmt: skip
    group: str | None = option(
        "group", None, "Let members of this group use the daemon.",
        more="The daemon's own user must be in it.", example="timers", unset="one user only",
    )  # fmt: skip
    admin_group: str | None = option(
        "group", None, "Let members of this group stop it, too.",
        more="They must also be in --group. They may also advance its virtual clock.",
        example="timers-admin", unset="its user and root",
    )  # fmt: skip

    pools: tuple[str, ...] = option(
        "pools", (), "A memory pool, such as requests=64M; may be given several times.",
        more="A budget of bytes that all workers share, with K, M or G for KiB, MiB, GiB; at most"
        " 16 pools. The bytes are the workers' own memory, not the daemon's.",
        example=("requests=64M,largest=1M", "answers=16M,strict"), given_as="--pool",
        section="Memory pools",
    )  # fmt: skip

    trace: str | None = option(
        "directory", None, "Directory in which every event is recorded as Parquet.",
        more="It is created if missing, and several daemons may share one. Needs"
        " the extra `parquet`.",
        example="/var/lib/wheeld/NAME/trace", unset="none", section="Trace",
    )  # fmt: skip
    trace_ring: int = option(
        "integer", 1 << 20, "How many events can wait for the recorder.",
        more="A power of two; 64 bytes of /dev/shm each. Events that do not fit are counted.",
        least=1 << _native.MIN_TRACE_BITS, most=1 << _native.MAX_TRACE_BITS, power_of_two=True,
        example=1024,
    )  # fmt: skip
    trace_every: str = option(
        "duration", "60s", "Write a file at least this often.", least="100ms", most="24h"
    )
    trace_keep: str | None = option(
        "duration", None, "Remove files older than this, such as 7d.",
        least="1s", most="36500d", example="7d", unset="keep all",
    )  # fmt: skip
    trace_bytes: str | None = option(
        "size", None, "Remove the oldest files beyond this size, such as 10G.",
        least="1", most=str((1 << 60) - 1), example="10G", unset="no limit",
    )  # fmt: skip

    metrics: str | None = option(
        "address", None, "Serve metrics for Prometheus here.",
        more="A process of its own serves them. Without an address on the command line:"
        f" {addresses.DEFAULT}. Port 0: any free one. Needs the extra `metrics`.",
        example=addresses.DEFAULT, unset="none", bare=addresses.DEFAULT, section="Metrics",
    )  # fmt: skip
    web: str | None = option(
        "address", None, "Serve a web page here; it is read-only unless `web_admin` is set.",
        more="It shows the contents of `wheeld top`, `wheeld jobs list` "
            "and `wheeld inspect`, including keys, to everybody who can "
            "reach the address; `web_token` and `web_admin` change that."
        f" Without an address on the command line: {addresses.WEB}. Port 0: any free one.",
        example=addresses.WEB, unset="none", bare=addresses.WEB,
    )  # fmt: skip
    web_token: str | None = option(
        "file", None, "Show the page's figures only to those who have the token in this file.",
        more="One line of at least 32 letters, as `(umask 077; openssl rand -hex 32 >FILE)` makes"
        " it. It is read at the start; the file must be closed to other users.",
        example="/etc/wheeld/NAME.token", unset="everybody",
    )  # fmt: skip
    web_admin: str | None = option(
        "file", None, "Let anyone who has the token in this file cancel timers on the page.",
        more="A file as for `web_token`; its token shows the figures, too.",
        example="/etc/wheeld/NAME.admin", unset="nobody",
    )  # fmt: skip

    log_level: str = option(
        "choice", "info", "Write messages from this level on: debug, info, warning or error.",
        choices=("debug", "info", "warning", "error"), live=True, section="Messages",
    )  # fmt: skip
    log_format: str = option(
        "choice", "text", "text, json or journald.",
        more="json: one object per line, with time, level, daemon, pid, "
            "message, and the worker that the message is about. journald:"
            " the same as fields, straight to systemd's journal.",
        choices=("text", "json", "journald"),
    )  # fmt: skip

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
    def idle_exit_s(self) -> float | None:
        return None if self.idle_exit is None else parse_duration(self.idle_exit) / 1e9

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
    def max_payload_bytes(self) -> int:
        return parse_bytes(self.max_payload)

    @property
    def heap_chunks(self) -> int:
        return _rounded_up(parse_bytes(self.payload_heap), _native.CHUNK_BYTES) // (
            _native.CHUNK_BYTES
        )

    @property
    def first_chunks(self) -> int:
        """Chunks of the payload heap that have memory from the start, so that the first payloads
        of a worker need no clock."""
        return min(_FIRST_CHUNKS, self.heap_chunks)

    @property
    def homes(self) -> int:
        """Slabs beyond the capacity, one for each worker that holds no other, so that every worker
        has slots even if others have filled the wheel. 0 if they would exceed the capacity."""
        return self.max_workers if self.max_workers * _native.SLAB_SLOTS <= self.slots else 0

    @property
    def shared_slabs(self) -> int:
        return self.slots // _native.SLAB_SLOTS

    @property
    def all_slots(self) -> int:
        return self.slots + self.homes * _native.SLAB_SLOTS

    @property
    def huge(self) -> bool:
        """Whether its memory should be in huge pages, if the kernel has them
        (`wheeld/shared/backing.h`). The page tables of a small wheel fit into the processor's
        caches."""
        return self.all_slots >= _native.HUGE_CAPACITY

    @property
    def first_slabs(self) -> int:
        """Slabs of the capacity that have memory from the start (`wheeld/shared/backing.h`)."""
        if self.reserve:
            return self.shared_slabs
        each = sum(size for part in _native.spans(0, 1, **self.native()) for _, size in part)
        return min(self.shared_slabs, max(1, _FIRST_BYTES // each))

    def native(self) -> dict[str, int]:
        return {
            "capacity": self.all_slots,
            "homes": self.homes,
            "max_workers": self.max_workers,
            "tick_ns": self.tick_ns,
            "wheel_bits": self.wheel_bits,
            "payload_bytes": self.payload_room,
            "heap_chunks": self.heap_chunks,
            "max_payload": self.max_payload_bytes,
            "detached_most": self.slots // 2
            if self.detached_capacity is None
            else self.detached_capacity,
            "virtual_clock": int(self.virtual_clock),
        }

    def notes(self) -> list[str]:
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

    def check(self, sources: Mapping[str, str] | None = None) -> Self:
        """Return self, or raise ConfigError for the first value that is not allowed; `sources` says
        where values come from, by key."""
        sources = sources or {}
        for key, declared in OPTIONS.items():
            value = getattr(self, key)
            try:
                if value is not None:
                    declared.check(value)
                self._check_with_others(key, value)
            except ValueError as error:
                raise wrong(key, value, error, sources.get(key)) from error
        return self

    def _check_with_others(self, key: str, value: Any) -> None:
        """Defaults that depend on the machine, or on another option."""
        if key == "pin_cpu" and value is not None:
            cpus = os.sched_getaffinity(0)
            if value not in cpus:
                raise ValueError(f"expected one of {sorted(cpus)}")
        if key in ("web_token", "web_admin") and value is not None and self.web is None:
            raise ValueError("it has no effect without --web: give --web, too")
        if key == "admin_group" and value is not None and self.group is None:
            raise ValueError(
                "its members must also be in `group` to reach the daemon: give --group, too"
            )


OPTIONS: Final = options_of(Config)
"""The declarations of the fields, by key."""


def wrong(key: str, value: Any, error: ValueError, source: str | None) -> ConfigError:
    what = list(value) if isinstance(value, tuple) else value
    return ConfigError(f"{source + ': ' if source else ''}{key} = {what!r}: {error}")


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class _Sources:
    """Values by key, collected from one source after another, and where each comes from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.names: dict[str, str] = {}

    def add(self, key: str, value: Any, source: str) -> None:
        """Set a value, replacing one from an earlier source."""
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
        import tomllib  # most daemons have no file

        try:
            text = path.read_text("utf-8")
            values = tomllib.loads(text)
        except FileNotFoundError as error:
            raise ConfigError(f"{path}: no such file") from error
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not valid TOML, which is UTF-8") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
        for key, value in values.items():
            self.add(key, value, str(path) + _line_of(key, text))

    def config(self) -> Config:
        return replace(Config(), **self.values).check(self.names)


def _like(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, OPTIONS, 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _line_of(key: str, text: str) -> str:
    found = re.search(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(key)}\b", text, re.MULTILINE)
    return f", line {text.count(chr(10), 0, found.start()) + 1}" if found else ""


def load(given: dict[str, Any], file: Path | None = None) -> Config:
    """The configuration from all sources: `given` by the caller (None: not given), the environment,
    and the TOML `file`, by default /etc/wheeld/<name>.toml if it exists.

    `ConfigError`: a key is unknown or a value is wrong.
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


log = logging.getLogger("wheeld")

LIVE: Final = tuple(key for key, option in OPTIONS.items() if option.live)
"""Options that are read at each use; `max_per_worker` applies to workers that connect
later."""


def reloaded(old: Config, read: Callable[[], Config]) -> Config:
    """Read the sources again; returns the configuration to use from now on, and what to log.

    A wrong file changes nothing.
    """
    try:
        new = read()
    except (WheelError, OSError, ValueError) as error:
        log.error("the configuration was not reloaded; the old one stays in force: %s", error)
        return old
    differ = [key for key in OPTIONS if getattr(old, key) != getattr(new, key)]
    live = [key for key in differ if key in LIVE]
    rest = [key for key in differ if key not in LIVE]
    said = ", ".join(f"{key} = {getattr(new, key)}" for key in live)
    log.info("reloaded the configuration: %s", said or "nothing that can be reloaded has changed")
    if rest:
        log.warning(
            "also changed, but takes effect only after a stop and a start: %s", ", ".join(rest)
        )
    return replace(old, **{key: getattr(new, key) for key in live})
