"""The remains of a killed daemon, for tests that damage them, without the rest of a daemon."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from wheeld.config.settings import Config
from wheeld.resources.owned import Resources
from wheeld_core.views import record


def names_of(config: Config) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"wheeld-{config.name}-")]


def place_of(config: Config) -> Path:
    return Path(str(config.runtime_dir), config.name)


def write_facts(config: Config, content: bytes | None = None, **facts: object) -> Path:
    place_of(config).mkdir(mode=0o700)
    path = place_of(config) / "daemon.json"
    path.write_bytes(json.dumps(facts).encode() if content is None else content)
    return path


def leave_with_a_timer(config: Config) -> None:
    resources = Resources(config)
    resources.slots.states[0] = 1
    resources.close(discard=False)


def set_head(kind: str, field: str, value: object) -> Callable[[Resources], None]:
    def damage(resources: Resources) -> None:
        record(resources.memories[kind], "head")[field] = value

    return damage


def set_word(kind: str, field: str, value: int) -> Callable[[Resources], None]:
    def damage(resources: Resources) -> None:
        record(resources.memories[kind], kind)[field] = value

    return damage


def path_of(resources: Resources, kind: str) -> Path:
    return Path("/dev/shm", resources.names[kind])
