"""One option of a daemon: its values and its description, for the command line, files and
documents.

The declarations are the fields of `wheeld.config.settings.Config`. The command line, environment
variables, the TOML file and its example, and the tables of docs/options.md follow from them.
"""

from __future__ import annotations

import contextlib
import grp
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar

from wheeld.config import addresses, pools
from wheeld_core.runtime import check_name
from wheeld_core.units import parse_bytes, parse_count, parse_duration

Kind = Literal[
    "name", "integer", "switch", "duration", "size", "choice", "directory", "group", "pools",
    "address", "file",
]  # fmt: skip


def group_id(name: str) -> int:
    """The id of a user group; ValueError if there is none of that name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError("no such group: `getent group` lists the existing ones") from None


_METAVARS: Final = {
    "name": "NAME", "integer": "N", "duration": "TIME", "size": "SIZE", "directory": "DIR",
    "file": "FILE", "group": "GROUP", "pools": pools.FORM, "address": "HOST:PORT",
}  # fmt: skip
_RULES: Final[Mapping[str, Callable[[Any], object]]] = {
    "name": check_name, "group": group_id, "pools": pools.parse, "address": addresses.parse,
}  # fmt: skip
_NUMBERS: Final[Mapping[str, Callable[[Any], int]]] = {
    "integer": int, "duration": parse_duration, "size": parse_bytes,
}  # fmt: skip
_SWITCH: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes
    ----------
    key : str
        Its name in the TOML file and in Python.
    kind : str
        The kind of its values.
    default
        None: no value, described by `unset`.
    help, more : str
        What it does: the text of --help, and an addition for the documents.
    least, most : int or str, optional
        Bounds of a number, as people write them.
    power_of_two : bool
        Other numbers are refused.
    choices : tuple of str
        The values of a choice.
    example
        A value other than the default.
    unset : str
        Describes the default where its value does not.
    bare : str
        The value on the command line if it is omitted; empty: it is required.
    given_as : str
        On the command line; default: from the key.
    live : bool
        A reload changes it in a running daemon.
    section : str
        The heading of its section, given at the section's first option.
    """

    kind: Kind
    help: str
    default: Any = None
    key: str = ""
    more: str = ""
    least: int | str | None = None
    most: int | str | None = None
    power_of_two: bool = False
    choices: tuple[str, ...] = ()
    example: Any = None
    unset: str = ""
    bare: str = ""
    given_as: str = ""
    live: bool = False
    section: str = ""

    @property
    def flag(self) -> str:
        return self.given_as or "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"WHEELD_{self.key.upper()}"

    @property
    def metavar(self) -> str | None:
        found = "|".join(self.choices) or _METAVARS.get(self.kind)
        return f"[{found}]" if self.bare else found

    @property
    def shown_default(self) -> str:
        return self.unset or ("" if self.default in (None, ()) else str(self.default))

    # -- values ----------------------------------------------------------------------------------

    def read(self, value: Any) -> Any:
        """The field's value, converted from any source, including the strings of the environment.
        `ValueError`: it has another type; the message says what was expected."""
        if self.kind == "pools":
            return _strings(value.split(";") if isinstance(value, str) else value)
        if self.kind == "switch" and isinstance(value, str):
            value = _SWITCH.get(value.lower(), value)
        if self.kind == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e6 in TOML
        if self.kind == "integer" and isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = parse_count(value)
        if self.kind == "size" and type(value) is int:
            value = str(value)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if type(value) is not {"switch": bool, "integer": int}.get(self.kind, str):
            raise ValueError(f"expected {self.expected(as_string=not isinstance(value, str))}")
        return value

    def check(self, value: Any) -> None:
        """Raise if this value of the field is not allowed. `ValueError`: it is not allowed; the
        message says what was expected, with an example."""
        if self.kind in _RULES:
            _RULES[self.kind](value)
        elif not self._is_allowed(value):
            raise ValueError(f"expected {self.expected()}")

    def _is_allowed(self, value: Any) -> bool:
        if self.kind in ("switch", "directory", "file"):
            return bool(value != "")
        if self.kind == "choice":
            return value in self.choices
        number = _NUMBERS[self.kind]
        try:
            found = number(value)
        except ValueError:
            return False
        in_bounds = (self.least is None or found >= number(self.least)) and (
            self.most is None or found <= number(self.most)
        )
        return in_bounds and not (self.power_of_two and bool(found & (found - 1)))

    def expected(self, as_string: bool = False) -> str:
        """Describes the allowed values, with an example; `as_string`: as strings."""
        if self.kind == "switch":
            return "a boolean: true or false"
        what = {
            "integer": "an integer, a power of two," if self.power_of_two else "an integer",
            "choice": " or ".join(map(repr, self.choices)),
            "size": "bytes with K, M, G or T, such as '500M' or '10G'",
            "address": f"an address, such as '{addresses.DEFAULT}'",
        }.get(self.kind, f"a {self.kind}")
        such = self.example or self.default
        if self.kind in ("integer", "duration"):
            what += f" {self.bounds}".rstrip() + (f", such as {such!r}" if such else "")
        return f"a string with {what}" if as_string and self.kind != "integer" else what

    @property
    def bounds(self) -> str:
        if self.least is None or self.kind == "size":
            return ""
        return f"from {self.least} " + (f"to {self.most}" if self.most is not None else "on")


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"expected a list of strings, such as ['{pools.EXAMPLE}']")
    return tuple(each.strip() for each in value if each.strip())


def option(kind: Kind, default: T, help: str, **more: Any) -> T:
    """The field of a dataclass that is an option; for its arguments see `Option`."""
    declared = Option(kind=kind, default=default, help=help, **more)
    found: T = field(default=default, metadata={"option": declared})
    return found


def options_of(config: type[Any]) -> dict[str, Option]:
    """The options declared by a dataclass, by key, each with its section."""
    found: dict[str, Option] = {}
    section = ""
    for each in fields(config):
        declared: Option = each.metadata["option"]
        section = declared.section or section
        found[each.name] = replace(declared, key=each.name, section=section)
    return found
