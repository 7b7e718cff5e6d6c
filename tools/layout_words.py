"""What layout.h and packing.h say in words of each field and of each part of a word.

The extension exports names, types and places only: nothing that runs needs the words.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import NamedTuple

import binaries
import sanitize


class Words(NamedTuple):
    """What a field is for, who writes and reads it, and in which order."""

    meaning: str
    writer: str
    readers: str
    order: str


@functools.cache
def _printed() -> tuple[list[str], list[str]]:
    """The lines about structs, and those about words; FileNotFoundError: there is no compiler."""
    source = Path(__file__).with_suffix(".c")
    program = binaries.compiled(sanitize.compiler(), ["-std=c11"], source, sanitize.INCLUDE)
    text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    structs, words = text.split("words\n")
    return structs.splitlines(), words.splitlines()


@functools.cache
def fields() -> dict[tuple[str, str], Words]:
    """By struct and field, in the order of layout.h."""
    found = {}
    struct = ""
    for line in _printed()[0]:
        name, *rest = line.split("\t")
        if len(rest) == 1:
            struct = rest[0]
        else:
            found[struct, name] = Words(*rest)
    return found


@functools.cache
def parts() -> dict[tuple[str, str], str]:
    """The meaning of each part, by word and part, in the order of packing.h."""
    lines = (line.split("\t") for line in _printed()[1])
    return {(word, part): meaning for word, part, meaning in lines}
