"""A worker with an account of its own, as a client of the unit: run inside the container.

It schedules all the time until its standard input ends, receives until all has come, and prints
what it found as JSON. A batch whose call failed may have been armed or not; of each other timer one
event is expected, and of no timer two. When the daemon is gone it connects again, under its name.

Usage: systemd_worker.py NAME
"""

import contextlib
import json
import select
import sys
import time
from collections import Counter
from typing import Any

from wheeld_client import Timers, connect
from wheeld_core.errors import WheelError

BATCH, DELAYS, PATIENCE = 20, (0.02, 0.05, 0.3, 1.0), 40.0
MOST_PENDING = 2000
"""The rings have room for so many timers while there is no clock."""
READY = 100
"""Expirations after which it says that it is at work."""


class Account:
    def __init__(self, name: str) -> None:
        self.name = name
        self.sure: set[int] = set()
        self.perhaps: set[int] = set()
        self.came: Counter[int] = Counter()
        self.connections = 0
        self.errors: list[str] = []
        self._next = 0

    def connected(self) -> Timers:
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                timers = connect(
                    "default", worker=self.name, on_death="keep", reconnect_for=PATIENCE
                )
            except (WheelError, OSError, ValueError) as error:
                if time.monotonic() > give_up:
                    raise
                self.errors.append(f"connect: {type(error).__name__}: {error}")
                time.sleep(0.02)
            else:
                self.connections += 1
                return timers

    def arm(self, timers: Timers) -> None:
        if len(self.sure) + len(self.perhaps) - len(self.came) > MOST_PENDING:
            return
        cookies = list(range(self._next, self._next + BATCH))
        self._next += BATCH
        delays = [DELAYS[cookie % len(DELAYS)] for cookie in cookies]
        self.perhaps.update(cookies)
        timers.schedule_many(delays, cookies)
        self.perhaps.difference_update(cookies)
        self.sure.update(cookies)

    def receive(self, timers: Timers) -> None:
        self.came.update(int(event["cookie"]) for event in timers.poll(0.02))

    def missing(self) -> set[int]:
        return self.sure - set(self.came)

    def as_json(self) -> dict[str, Any]:
        known = self.sure | self.perhaps
        return {
            "scheduled": len(self.sure),
            "perhaps": len(self.perhaps),
            "lost": len(self.missing()),
            "doubled": sum(count > 1 for count in self.came.values()),
            "alien": sum(cookie not in known for cookie in self.came),
            "connections": self.connections,
            "errors": sorted(set(self.errors)),
        }


def main(name: str) -> None:
    account = Account(name)
    timers = account.connected()
    working, give_up, silent = True, 0.0, True
    while working or (account.missing() and time.monotonic() < give_up):
        if working and select.select([sys.stdin], [], [], 0)[0]:
            working, give_up = False, time.monotonic() + PATIENCE
        try:
            if working:
                account.arm(timers)
            account.receive(timers)
            if silent and len(account.came) >= READY:
                silent = False
                print("ready", flush=True)
        except (WheelError, OSError) as error:
            account.errors.append(f"{type(error).__name__}: {error}")
            with contextlib.suppress(WheelError, OSError):
                timers.close()
            timers = account.connected()
    timers.close()
    print(json.dumps(account.as_json()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
