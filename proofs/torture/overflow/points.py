"""Deaths of a shard's task in the middle of a step, in the Python workers of a real Spark.

`site_folder` makes a folder for PYTHONPATH; workers that find it there load this module when they
start. A task that comes to a point, and finds a file of that name in POINTS, takes it and dies:

    seal      half of a delta is written
    apply     the columns have some of the changes
    redo      the same, while they are brought to the batch before
    snapshot  half of a segment is written
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

FOLDER: Final = "WHEELD_TORTURE_POINTS"
POINTS: Final = ("seal", "apply", "redo", "snapshot")
ROOT: Final = Path(__file__).parents[3]
SITE: Final = """import os, traceback
try:
    from proofs.torture.overflow import points
    points.install()
except BaseException:  # Python itself would go on without the points
    traceback.print_exc()
    os._exit(1)
"""
PACKAGE: Final = "wheeld_pipeline.overflow"


def site_folder(base: Path) -> dict[str, str]:
    site = base / "site"
    site.mkdir()
    (base / "points").mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    return {FOLDER: str(base / "points"), "PYTHONPATH": f"{site}:{ROOT}"}


def install() -> None:
    patches = {
        "columns.store": _of_store,
        "checkpoint.log": _of_log,
        "checkpoint.places": _of_places,
    }
    named = {f"{PACKAGE}.{name}": patch for name, patch in patches.items()}
    sys.meta_path.insert(0, _Finder(named))


class _Finder(importlib.abc.MetaPathFinder):
    """Patches modules once they are loaded."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = self._patches.pop(name, None)
        spec = importlib.util.find_spec(name) if patch else None
        if spec is None or patch is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            patch(module)

        loader.exec_module = exec_module
        return spec


def _taken(point: str) -> bool:
    """Is this task to die here?"""
    try:
        Path(os.environ[FOLDER], point).unlink()
    except FileNotFoundError:
        return False
    return True


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _of_store(store: Any) -> None:
    store.SEGMENT = 256
    write = store.Store._write

    def write_or_die(self: Any, *arguments: Any) -> None:
        write(self, *arguments)
        if _taken("redo" if getattr(self, "is_redone", False) else "apply"):
            _die()

    store.Store._write = write_or_die


def _of_log(log: Any) -> None:
    log.MOST_DELTAS = 4
    redo = log.redo

    def redo_marked(store: Any, *arguments: Any) -> None:
        store.is_redone = True
        redo(store, *arguments)
        store.is_redone = False

    log.redo = redo_marked


def _of_places(places: Any) -> None:
    write = places.Place.write

    def write_or_die(self: Any, name: str, batches: Any) -> int:
        if _taken("snapshot" if name.startswith("segment") else "seal"):
            with self._open(name) as file:
                file.write(b"ARROW1 and no more")
                file.flush()
            _die()
        return int(write(self, name, batches))

    places.Place.write = write_or_die
