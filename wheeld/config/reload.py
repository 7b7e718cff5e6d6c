"""The options that can change while a daemon runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wheeld.config.settings import OPTIONS, Config
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")

LIVE: Final = tuple(key for key, option in OPTIONS.items() if option.live)
"""Options that are read each time they are needed; `max_per_worker` applies to workers that connect
later."""


def reloaded(old: Config, read: Callable[[], Config]) -> Config:
    """Read the sources again; returns the configuration to use from now on, and what to log.

    One that is wrong changes nothing.
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
