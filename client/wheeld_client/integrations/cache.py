"""A Django cache in the daemon's memory, shared by all processes of a host; sessions can use it,
too.

CACHES = {"default": {
    "BACKEND": "wheeld_client.integrations.cache.WheeldCache",
    "LOCATION": "default",             # the daemon's name, or the path of its runtime directory
    "OPTIONS": {"name": "sessions"},   # caches of other names are others
}}

An entry is a detached timer with a key and a payload: it outlives the process that set it, and
expires with the timer.
"""

from __future__ import annotations

import os
import pickle
from functools import cache
from typing import Any, Final

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.leases.lease import Lease
from wheeld_client.timers.observer import pending_timers
from wheeld_core.errors import KeyInUse, WheelFull
from wheeld_core.timer_options import Key
from wheeld_core.timer_record import TimerRecord

GROUP: Final = "caches"
"""Members of this group receive expired entries, and drop them."""
KIND: Final = "cache"
FOREVER: Final = 100 * 365 * 86400.0
INCR_SECONDS: Final = 10.0


@cache
def _process(daemon: str) -> ProcessTimers:
    worker = f"cache-{os.getpid()}"
    return ProcessTimers(daemon, on_events=len, worker=worker, group=GROUP)


class WheeldCache(BaseCache):
    """A cache that all processes of a host share, in a daemon's memory.

    Notes
    -----
    Values are pickled: anyone who may use the daemon can run code in all processes that read the
    cache, as with Redis or Memcached. `MAX_ENTRIES` has no effect: when the daemon is full, one
    entry in `CULL_FREQUENCY` is removed, starting with those that would expire first. `incr` and
    `decr` of all processes add up; one that coincides with a `set` or `delete` of the same key,
    within a microsecond, may undo it.
    """

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._process = _process(location or "default")
        self._name = str(params.get("OPTIONS", {}).get("name", ""))

    def _key(self, key: Any, version: int | None) -> Key:
        return KIND, self._name, self.make_and_validate_key(key, version=version)

    def _find(self, key: Key) -> TimerRecord | None:
        record = self._process.get().find(key)
        return record if record is not None and record.remaining > 0 else None

    def _seconds(self, timeout: Any) -> float:
        seconds = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        return FOREVER if seconds is None else min(float(seconds), FOREVER)

    def _put(self, key: Key, value: bytes, seconds: float, on_conflict: Any) -> bool:
        if seconds <= 0:
            if on_conflict == "raise":
                return self._find(key) is None
            self._process.get().cancel(key=key)
            return True
        for full in (False, True):
            try:
                self._process.get().schedule(
                    seconds, key=key, on_conflict=on_conflict, payload=value,
                    to=f"group:{GROUP}", detached=True, keep=True,
                )  # fmt: skip
                break
            except KeyInUse:
                return False
            except WheelFull:
                if full or not self._drop(self._cull_frequency or 1):
                    raise
        return True

    def _drop(self, part: int = 1) -> int:
        """Remove one entry in `CULL_FREQUENCY`, starting with those that would expire first."""
        entries = pending_timers(self._process.daemon, prefix=(KIND, self._name)).timers
        soonest = entries["timer_id"][entries["due"].argsort()]
        return int(self._process.get().cancel_many(soonest[: -(-len(soonest) // part)]).sum())

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """Set a key's value if it has none. False: it has."""
        value = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return self._put(self._key(key, version), value, self._seconds(timeout), "raise")

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """The value of a key."""
        record = self._find(self._key(key, version))
        return default if record is None else pickle.loads(record.payload or b"")

    def get_many(self, keys: Any, version: int | None = None) -> dict[Any, Any]:
        """The values of the keys that have one."""
        full = {self._key(key, version): key for key in keys}
        records = self._process.get().find_many(full)
        return {
            key: pickle.loads(record.payload or b"")
            for key, record in zip(full.values(), records, strict=True)
            if record is not None and record.remaining > 0
        }

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        """Set a key's value for `timeout` seconds."""
        value = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._put(self._key(key, version), value, self._seconds(timeout), "replace")

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Let a key's value expire `timeout` seconds from now. False: it has none."""
        seconds, found = self._seconds(timeout), self._key(key, version)
        if seconds <= 0:
            return bool(self._process.get().cancel(key=found))
        return bool(self._process.get().reschedule(key=found, delay=seconds))

    def delete(self, key: Any, version: int | None = None) -> bool:
        """Forget a key's value. False: it had none."""
        return bool(self._process.get().cancel(key=self._key(key, version)))

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Add to a key's value, which keeps its expiry. ValueError: it has none."""
        full = self._key(key, version)
        with Lease(self._process.get(), KIND, INCR_SECONDS, full):
            if (record := self._find(full)) is None:
                raise ValueError(f"Key {key!r} not found")
            value: int = pickle.loads(record.payload or b"") + delta
            data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            self._put(full, data, record.remaining, "replace")
        return value

    def clear(self) -> None:
        """Forget all values of this cache."""
        self._drop()
