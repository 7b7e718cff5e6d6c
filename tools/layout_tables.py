"""Keep the tables of shm_layout.md up to date: they are made from the layout that the core exports.

python -m tools.layout_tables --check    exit 1 if the file differs from the code
python -m tools.layout_tables --write    bring the file up to date
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from proofs import binaries, sanitize
from tools.generated import ROOT, settle
from wheeld_core import _native
from wheeld_core.packing import PARTS
from wheeld_core.views import layout

DOCUMENT = ROOT / "shm_layout.md"
_BLOCK = re.compile(
    r"(<!-- (?P<kind>table|constants|words) ?(?P<name>\w*) -->\n).*?(<!-- end -->)", re.S
)
_CONSTANTS = (
    "LAYOUT_VERSION", "FINGERPRINT", "SLAB_SLOTS", "MAX_CAPACITY", "MAX_WORKERS", "BUCKETS",
    "POOLS", "MAX_POOL_BYTES",
)  # fmt: skip
_TYPES = {
    "wh_au64": "atomic u64",
    "wh_ai64": "atomic i64",
    "wh_au32": "atomic u32",
    "wh_au16": "atomic u16",
    "uint64_t": "u64",
    "int64_t": "i64",
    "uint32_t": "u32",
    "uint16_t": "u16",
    "uint8_t": "u8",
    "char": "char",
}


# Descriptions by layout.h and packing.h of each field and of each part of a word. The extension
# exports names, types and places only: nothing that runs needs the words.


class Words(NamedTuple):
    """The purpose of a field, its writer and readers, and the order of accesses."""

    meaning: str
    writer: str
    readers: str
    order: str


@functools.cache
def _printed() -> tuple[list[str], list[str]]:
    """The lines about structs, and those about words; FileNotFoundError: there is no compiler."""
    source = Path(__file__).with_name("pages") / "layout_words.c"
    program = binaries.compiled(sanitize.compiler(), ["-std=c11"], source, sanitize.INCLUDE)
    text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    structs, words = text.split("words\n")
    return structs.splitlines(), words.splitlines()


@functools.cache
def fields_in_words() -> dict[tuple[str, str], Words]:
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
def parts_in_words() -> dict[tuple[str, str], str]:
    lines = (line.split("\t") for line in _printed()[1])
    return {(word, part): meaning for word, part, meaning in lines}


def table(struct: str) -> str:
    size, fields = layout()[struct]
    lines = [
        f"`{struct}`, {size} bytes",
        "",
        "| offset | field | type | meaning | writer | readers | order |",
        "| ---: | --- | --- | --- | --- | --- | --- |",
    ]
    for field in fields:
        texts = fields_in_words()[struct, field.name]
        if texts.meaning == "zero":
            continue
        type_name = _TYPES[field.type] + (f"[{field.length}]" if field.length > 1 else "")
        cells = [text.replace("|", "\\|") for text in texts]
        lines.append(f"| {field.offset} | `{field.name}` | {type_name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def constants() -> str:
    lines = ["| constant | value |", "| --- | --- |"]
    lines += [f"| `{name}` | {getattr(_native, name)} |" for name in _CONSTANTS]
    return "\n".join(lines) + "\n"


def words() -> str:
    lines = ["| word | bits | part | meaning |", "| --- | ---: | --- | --- |"]
    for (word, part), (at, bits) in PARTS.items():
        meaning = parts_in_words()[word, part]
        where = f"{at}-{at + bits - 1}" if bits > 1 else f"{at}"
        lines.append(f"| {word} | {where} | {part} | {meaning} |")
    return "\n".join(lines) + "\n"


def render(document: str) -> str:
    def block(match: re.Match[str]) -> str:
        makers = {"constants": constants, "words": words}
        body = table(match["name"]) if match["kind"] == "table" else makers[match["kind"]]()
        return f"{match[1]}{body}{match[4]}"

    return _BLOCK.sub(block, document)


def main() -> int:
    document = DOCUMENT.read_text()
    missing = [name for name in layout() if f"<!-- table {name} -->" not in document]
    if missing:
        print(f"{DOCUMENT.name}: no table for {', '.join(missing)}")
        return 1
    return settle({DOCUMENT: render(document)}, "layout_tables", __doc__)


if __name__ == "__main__":
    sys.exit(main())
