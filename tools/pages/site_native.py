"""The site's docstrings of the native module: its stub has the types, the module the text."""

from __future__ import annotations

from typing import Any

import griffe

from wheeld_core import _native

NATIVE = "_native"


class NativeDocstrings(griffe.Extension):
    """Copies each docstring of wheeld_core._native to its stub."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if NATIVE in pkg.members:
            self._copy(pkg[NATIVE], _native)

    def _copy(self, stub: griffe.Object, native: object) -> None:
        for name, member in stub.members.items():
            if not member.is_alias and hasattr(native, name):
                found = getattr(native, name)
                if isinstance(found.__doc__, str) and not isinstance(found, int | str):
                    member.docstring = griffe.Docstring(
                        found.__doc__, parent=member, parser="numpy"
                    )
                self._copy(member, found)
