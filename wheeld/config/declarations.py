"""The options of a daemon, each declared once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from wheeld.config import addresses
from wheeld.config.options import option, options_of
from wheeld_core import _native
from wheeld_core.errors import WheelError


class ConfigError(WheelError):
    """A configuration value is wrong; the message names source, key, value and what is allowed."""


@dataclass(frozen=True)
class Declared:
    """The options of a daemon."""

    name: str = option("name", "default", "Name of the daemon.", section="Place")
    runtime_dir: str | None = option(
        "directory", None, "Directory that holds the runtime directory.",
        unset="/run/wheeld, else a directory of the user",
    )  # fmt: skip

    capacity: int = option(
        "integer", 1 << 20, "How many timers it can hold.",
        more="Rounded up to whole slabs of 64 slots; a slot takes 64 bytes of /dev/shm and a little"
        " more. Each worker that holds no slots has a slab besides.",
        least=1, most=_native.MAX_CAPACITY, section="Wheel",
    )  # fmt: skip
    max_workers: int = option(
        "integer", 64, "How many processes can connect.", least=1, most=_native.MAX_WORKERS
    )
    max_per_worker: int | None = option(
        "integer", None, "Most slots for one worker.",
        more="So no worker can fill the wheel alone. Rounded up to whole slabs of 64.",
        least=1, example=100_000, unset="all", live=True,
    )  # fmt: skip
    tick: str = option(
        "duration", "1ms", "Resolution of the wheel, such as 1ms.",
        more="A timer fires at most one tick late, plus the wake-up by the kernel. Few timers in a"
        " tick do not wait for its end.",
        least="1ns", most="3600s",
    )  # fmt: skip
    wheel_size: int = option(
        "integer", 64, "Buckets per level.", more="Rounded up to a power of two.",
        least=2, most=1 << _native.MAX_WHEEL_BITS,
    )  # fmt: skip
    payload_bytes: int = option(
        "integer", 0, "Payload bytes per timer.",
        more="These are besides its 64-bit cookie. Rounded up to a multiple of 8.",
        least=0, most=65528,
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
        more="This applies to a worker with on_death='keep', and to a group without members.",
        least="1ms", most="168h", live=True, section="Workers",
    )  # fmt: skip
    evict_after: int | None = option(
        "integer", None, "Kill a worker after this many offences.",
        more="An offence is a submission that no correct client makes.",
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
        " `pip install 'wheeld[parquet]'`.",
        example="/var/lib/wheeld/NAME/trace", unset="none", section="Trace",
    )  # fmt: skip
    trace_ring: int = option(
        "integer", 1 << 20, "How many events can wait for the recorder.",
        more="A power of two; 64 bytes of /dev/shm each. Events that find no room are counted.",
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
        f" {addresses.DEFAULT}. Port 0: any free one. Needs `pip install 'wheeld[metrics]'`.",
        example=addresses.DEFAULT, unset="none", bare=addresses.DEFAULT, section="Metrics",
    )  # fmt: skip

    log_level: str = option(
        "choice", "info", "debug, info, warning or error: from which on messages are written.",
        choices=("debug", "info", "warning", "error"), live=True, section="Messages",
    )  # fmt: skip
    log_format: str = option(
        "choice", "text", "text, json or journald.",
        more="json: one object a line, with time, level, daemon, pid, message, and the worker that"
        " it is about. journald: the same as fields, straight to systemd's journal.",
        choices=("text", "json", "journald"),
    )  # fmt: skip

    def check(self, sources: Mapping[str, str] | None = None) -> Self:
        """Return self, or raise ConfigError for the first value that is not allowed.

        Parameters
        ----------
        sources : mapping, optional
            Where values come from, for the message, by key.
        """
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
        """What depends on the machine, or on another option."""
        if key == "pin_cpu" and value is not None:
            cpus = os.sched_getaffinity(0)
            if value not in cpus:
                raise ValueError(f"expected one of {sorted(cpus)}")
        if key == "admin_group" and value is not None and self.group is None:
            raise ValueError(
                "its members must also be in `group` to reach the daemon: give --group, too"
            )


OPTIONS: Final = options_of(Declared)
"""The declarations of the fields, by key."""


def wrong(key: str, value: Any, error: ValueError, source: str | None) -> ConfigError:
    what = list(value) if isinstance(value, tuple) else value
    return ConfigError(f"{source + ': ' if source else ''}{key} = {what!r}: {error}")
