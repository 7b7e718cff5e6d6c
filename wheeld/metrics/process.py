"""The exporter process: serves a daemon's metrics and its page, for `--metrics` and `--web`.

It is started by the supervisor (`python -m wheeld.metrics.process <fd>`). Slow or broken clients
can harm only this process: the clock shares nothing with it, and the supervisor gets one status
request at a time, as from `wheeld status`.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final

from wheeld.metrics.jobs import with_jobs
from wheeld.metrics.server import Site, serve
from wheeld.processes import child_main as child
from wheeld.processes.messages import Notice, Order
from wheeld_core.control import ask
from wheeld_core.control.messages import Request
from wheeld_core.errors import WheelError

ANSWER_SECONDS: Final = 5.0
"""Seconds; less than Prometheus waits for a scrape, so that a hanging supervisor shows as
`wheeld_up 0`."""
NICE: Final = 5
"""The process's nice value: a lower priority than the clock and the workers have."""
TRY_SECONDS: Final = 2.0
"""Seconds for which the address may be in use: an earlier daemon's exporter may still be ending."""


def run(channel: child.SupervisorChannel) -> None:
    hello = channel.hello()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    directory = Path(hello["directory"])

    def status() -> dict[str, Any]:
        found: dict[str, Any] = ask(directory, Request.STATUS, ANSWER_SECONDS)["status"]
        if found["pid"] != hello["supervisor"]:
            raise WheelError(f"another daemon (pid {found['pid']}) answers in {directory}")
        return with_jobs(found, directory)

    sites: dict[str, tuple[str, Site]] = {}
    if hello["metrics"] is not None:
        from wheeld.metrics.scrapes import Scrapes  # what it imports may not be installed

        sites["--metrics"] = hello["metrics"], Scrapes(status, directory.name)
    if hello["web"] is not None:
        from wheeld.metrics.tokens import Tokens, read_token
        from wheeld.metrics.web import Web

        files = {"--web-token": hello["web_token"], "--web-admin": hello["web_admin"]}
        try:
            tokens = Tokens(*(read_token(option, path) for option, path in files.items()))
        except WheelError as error:
            channel.send({"op": Notice.TROUBLE, "text": str(error)})
            return
        web = Web(status, directory, hello["web"], tokens, child.say)
        sites["--web"] = hello["web"], web
    give_up = time.monotonic() + TRY_SECONDS
    with contextlib.ExitStack() as stack:
        while True:
            try:
                found = stack.enter_context(serve(sites))
                break
            except WheelError as error:
                in_use = isinstance(error.__cause__, OSError) and "in use" in str(error)
                if not in_use or time.monotonic() > give_up:
                    channel.send({"op": Notice.TROUBLE, "text": str(error)})
                    return
                time.sleep(0.05)
        channel.send({"op": Notice.READY, "addresses": dict(zip(sites, found, strict=True))})
        while (message := channel.receive()) is not None and message["op"] != Order.STOP:
            pass


def main() -> None:
    child.run("metrics", run)


if __name__ == "__main__":
    main()
