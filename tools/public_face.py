"""The public names of wheeld, with their parameters: what programs may rely on.

    python -m tools.public_face             prints how many there are, and what has changed
    python -m tools.public_face --write     writes tests/meta/public_face.txt

A change of that file is a line in CHANGELOG.md (docs/versions.md).
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

SNAPSHOT: Final = Path(__file__).parents[1] / "tests/meta/public_face.txt"
OURS: Final = ("wheeld", "wheeld_client", "wheeld_core", "wheeld_testing")
MODULES: Final = ("wheeld", "wheeld_client", "wheeld_testing")
INTEGRATIONS: Final = "wheeld_client.integrations"


def modules() -> Iterator[ModuleType]:
    yield from map(importlib.import_module, MODULES)
    package = importlib.import_module(INTEGRATIONS)
    for found in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{INTEGRATIONS}.{found.name}")


def names(module: ModuleType) -> list[str]:
    """Its names: those that it lists, or that are made there."""
    here = [name for name, value in vars(module).items() if _is_made_in(module, value)]
    listed: list[str] = getattr(module, "__all__", here)
    return sorted(name for name in listed if not name.startswith("_"))


def _is_made_in(module: ModuleType, value: object) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def lines() -> list[str]:
    """One for each name and each member of a class, in order."""
    found = []
    for module in modules():
        for name in names(module):
            value = getattr(module, name)
            path = f"{module.__name__}.{name}"
            found.append(path + _signature(value))
            if inspect.isclass(value) and not issubclass(value, BaseException):
                found += [f"{path}.{member}" for member in _members(value)]
    return found


def _members(owner: type[Any]) -> list[str]:
    """Public members, but for those of other libraries' classes."""
    found: dict[str, Any] = {}
    for each in reversed(owner.__mro__):
        if each.__module__.partition(".")[0] in OURS:
            found.update(vars(each))
    shown = {name: value for name, value in found.items() if not name.startswith("_")}
    return [name + _signature(value) for name, value in sorted(shown.items())]


def _signature(value: Any) -> str:
    """Its parameters without types, which Python's versions write differently."""
    value = getattr(value, "__func__", value)
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a native one without a text for it
        return "(...)"
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return re.sub(r"<(.+?) at 0x[0-9a-f]+>", r"<\1>", str(inspect.Signature(parameters)))


def counted(found: list[str]) -> str:
    bare = [line.partition("(")[0] for line in found]
    tops = {path for path in bare if path.rpartition(".")[0] not in bare}
    return f"{len(tops)} names with {len(bare) - len(tops)} members"


def text() -> str:
    found = lines()
    return f"# {counted(found)}: python -m tools.public_face --write\n" + "\n".join(found) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the snapshot")
    if parser.parse_args().write:
        SNAPSHOT.write_text(text())
    before = SNAPSHOT.read_text() if SNAPSHOT.exists() else ""
    changed = list(difflib.unified_diff(before.split("\n"), text().split("\n"), lineterm="", n=0))
    print("\n".join([counted(lines()), *changed[2:]]))
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
