"""Keeps an exporter for metrics and page running; its failures never end a daemon that serves."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from typing import Any, Final

from wheeld.processes.children import ChildGuard
from wheeld.processes.messages import Notice, Order
from wheeld.processes.spawn import EXPORTER
from wheeld.resources.owned import Resources
from wheeld_core import extras
from wheeld_core.control import Message
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")

START_SECONDS: Final = 30.0
"""How long the daemon's start waits for the first exporter."""


def check_installed() -> None:
    """Check that the library of the exporter is installed, without loading it. `WheelError`: it is
    not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise WheelError(
            "--metrics needs prometheus-client, which is not installed: "
            f"{extras.command('metrics')}"
        )


class ExporterGuard(ChildGuard):
    """One running exporter at a time; none without --metrics and --web. `WheelError`: a package
    that it needs is not installed."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(EXPORTER)
        self._resources = resources
        self._wanted = {"metrics": resources.config.metrics, "web": resources.config.web}
        files = {"web_token": resources.config.web_token, "web_admin": resources.config.web_admin}
        self._tokens = {key: path and os.path.abspath(path) for key, path in files.items()}
        self._settled = asyncio.Event()
        self._addresses: dict[str, str] = {}
        self._trouble: str | None = None
        self._awaited = False
        if self._wanted["metrics"] is not None:
            check_installed()

    def launch(self, awaited: bool) -> None:
        """Start keeping an exporter running, if one is wanted. `awaited`: `started` is called next,
        and raises errors that occur until then; otherwise they are logged."""
        self._awaited = awaited
        if any(self._wanted.values()):
            self._start_keeping()

    async def started(self) -> None:
        """Wait for the first exporter. `WheelError`: it does not serve; this may end the daemon,
        because nobody relies on it yet."""
        if self._keeping is None:
            return
        try:
            await asyncio.wait_for(self._settled.wait(), START_SECONDS)
        except TimeoutError:
            self._trouble = f"no exporter within {START_SECONDS:.0f} s"
        self._awaited = False
        if self._trouble is not None:
            raise WheelError(self._trouble)

    async def stop(self) -> None:
        self._stopping = True
        await self._end_keeping()

    def status(self) -> dict[str, dict[str, Any] | None]:
        """Its parts of `wheeld status`, `metrics` and `web`; None for a part that is not wanted."""
        return {
            name: self._entry(name) if wanted else None for name, wanted in self._wanted.items()
        }

    def _entry(self, name: str) -> dict[str, Any]:
        address = self._addresses.get(f"--{name}")
        return {
            "address": address,
            "pid": self.pid if address is not None else None,
            "restarts": self.restarts,
            "trouble": self._trouble,
        }

    def _greet(self) -> None:
        self.send(
            Order.HELLO,
            **self._resources.config.introduction,
            supervisor=os.getpid(),
            directory=str(self._resources.directory),
            **self._wanted,
            **self._tokens,
        )

    def _heard(self, message: Message) -> None:
        if message["op"] == Notice.READY:
            self._addresses, self._trouble = message["addresses"], None
            for option, address in self._addresses.items():
                log.info("%s on http://%s", option.strip("-"), address)
        elif message["op"] == Notice.TROUBLE:
            self._troubled(message["text"])
        self._settled.set()

    def _failed(self, error: Exception | None, pause: float) -> None:
        if error is not None:
            self._troubled(repr(error))
        self._addresses = {}
        self._settled.set()  # a start that waits for it may go on
        if self._trouble is None:
            code = self._child.returncode if self._child else None
            log.warning("the exporter ended (exit code %s); the next starts in %.1f s", code, pause)

    def _troubled(self, text: str) -> None:
        if text != self._trouble and not self._awaited:
            log.warning("no metrics are served; trying again: %s", text)
        self._trouble = text
