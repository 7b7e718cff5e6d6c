"""Settings for Django's own tests, run by its runtests.py: what is LocMemCache there is a wheel's.

The time of their modules is a virtual clock's, which `sleep` advances. Their caches are of one
daemon, and have no limit of entries.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.core.cache.backends import locmem
from django.test.runner import DiscoverRunner

import wheeld
from wheeld_client import connect
from wheeld_client.integrations.cache import WheeldCache, _process

SECRET_KEY = "of a test"
DATABASES = {name: {"ENGINE": "django.db.backends.sqlite3"} for name in ("default", "other")}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "foreign_django.Runner"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
daemon: Any = None


class Ends(dict[str, Any]):
    def __init__(self, cache: WheeldCache) -> None:
        self.cache = cache

    def __getitem__(self, key: str) -> int | None:
        record = self.cache._process.get().find(("cache", self.cache._name, key))
        if record.remaining > 1e9:
            return None  # for ever
        return round(record.deadline, -6)  # to a ms, as ns are not exact in a float


class LocMemCache(WheeldCache):
    """As a name is LocMemCache's location, it is that of a cache here."""

    _cache, _lock = None, threading.Lock()

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        options = {**params.get("OPTIONS", {}), "name": location}
        super().__init__(str(daemon), {**params, "OPTIONS": options})
        self._expire_info = Ends(self)


class Runner(DiscoverRunner):
    def run_suite(self, suite: unittest.TestSuite, **options: Any) -> Any:
        global daemon
        with wheeld.embedded(virtual_clock=True) as daemon:
            with connect(daemon, worker="clock") as clock:
                there = {
                    "time": lambda: clock._clock_ns(time.CLOCK_REALTIME) / 1e9,
                    "sleep": daemon.advance,
                }
                sys.modules["cache.tests"].time = SimpleNamespace(**there)  # type: ignore[attr-defined]
                result = super().run_suite(suite, **options)
            _process(str(daemon)).close()
        bad = {"failure": result.failures, "error": result.errors, "skipped": result.skipped}
        told = {test.id(): f"{kind}: {why}" for kind, some in bad.items() for test, why in some}
        Path(os.environ["FOREIGN_REPORT"]).write_text(json.dumps([result.testsRun, told]))
        return result


locmem.LocMemCache = LocMemCache
