"""The fingerprint: two builds that mean different things by a word of shared memory never meet.

Each constant, each enumerator and each shift is changed in a copy of the headers, and the copy has
another fingerprint; what is in no list is found by the house rule.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import agreed
import sanitize
from wheeld_core import _native

pytestmark = pytest.mark.skipif(
    sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"
)

PROGRAM = """
#include <stdio.h>
#include "wheeld/shared/geometry.h"
int main(void) { printf("%016llx", (unsigned long long)wh_fingerprint()); }
"""
FILES = {path.name: path for path in (sanitize.INCLUDE / "wheeld").glob("*/*.h")}
HEADERS = {path.name: path.read_text() for path in FILES.values()}
NAMES = agreed.LISTED.findall(HEADERS["agreed.h"])

WORDS = {
    "generation of an id": ("slot.h", "return (uint64_t)gen << 32 | slot;", "32", "31"),
    "kind of an id": ("slot.h", "return id | (uint64_t)kind << WH_KIND_SHIFT;", "kind", "2 * kind"),
    "generation of a state": ("slot.h", "return (uint64_t)gen << 32 | phase;", "32", "33"),
    "phase of a state": ("slot.h", "return (uint32_t)(s & 0xff);", "0xff", "0x7f"),
    "version of a state": ("slot.h", "(s + 0x100) & 0xffffff00ull", "0x100", "0x200"),
    "end of a state": ("slot.h", "(s & ~0xffull) | phase", "0xffull", "0xfull"),
    "wrap of generations": ("slot.h", "return gen + 1 ? gen + 1 : 1;", ": 1", ": 2"),
    "owner": ("agreed.h", "return incarnation << 16 | (worker + 1);", "16", "20"),
    "target": ("agreed.h", "(uint32_t)(incarnation & 0xfffff) << 12", "12", "13"),
    "incarnation of a target": ("agreed.h", "(incarnation & 0xfffff) <<", "0xfffff", "0xffff"),
    "group of a target": ("agreed.h", "| group << 12 | WH_TARGET_GROUP;", "12", "13"),
    "uses of a group": ("agreed.h", "return (uses & WH_USES_MASK) << 18 |", "18", "19"),
    "uses in a target": ("agreed.h", "return target >> 18;", "18", "19"),
    "names of a group": ("agreed.h", "return (uses & WH_USES_MASK) << 1 |", "1", "2"),
    "names that it had": ("agreed.h", "return used >> 1 & WH_USES_MASK;", "1", "2"),
    "a group that is named": ("agreed.h", "return used & 1;", "& 1", "& 2"),
    "stage": ("agreed.h", "return (uint64_t)stage << 60 |", "60", "61"),
    "bytes of a pool": ("agreed.h", "return bytes << WH_POOL_BYTES_SHIFT |", "bytes", "2 * bytes"),
    "a reaping": ("agreed.h", "return change << 16 | (row + 1);", "16", "20"),
    "what is before": ("ring.h", "(limit - pos48) & WH_POS_MASK", "limit - pos48", "pos48 - limit"),
    "the hash of a key": ("key_hash.h", "0xd6e8feb86659fd93ull", "d93", "d95"),
    "the bucket of a key": ("key_hash.h", "(uint32_t)(h & 0xffff)", "h &", "h >> 16 &"),
    "size of a ring": ("geometry.h", "wh_bits_between(c->capacity / 32, 10, 15)", "/ 32", "/ 16"),
    "where slots begin": ("geometry.h", "wh_align(g.owners_off + 8ull", "8ull", "16ull"),
}
"""By what it is: header, the text, and in there the old and the new."""


def fingerprint(directory: Path, headers: dict[str, str]) -> str | None:
    """That of a build with these headers; None: it does not compile."""
    for name, text in headers.items():
        copy = directory / FILES[name].relative_to(sanitize.INCLUDE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    source, binary = directory / "print.c", directory / "print"
    source.write_text(PROGRAM)
    compiler = (sanitize.compiler() or "").split()
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O0", "-w", f"-I{directory}"]
    built = subprocess.run(
        [*compiler, *flags, str(source), "-o", str(binary)], capture_output=True, check=False
    )
    found = None
    if built.returncode == 0:
        found = subprocess.run([binary], capture_output=True, text=True, check=True).stdout
    shutil.rmtree(directory)
    return found


def changed(name: str) -> list[dict[str, str]]:
    """The headers with another value of a constant, in ways of which at least one compiles."""
    header = next(h for h, text in HEADERS.items() if name in agreed.constants(text))
    text = HEADERS[header]
    define = re.compile(rf"^(#define {name} +)(.+?)( */\*.*)?$", re.MULTILINE)
    if define.search(text):
        ways = [define.sub(rf"\1((\2) {how})", text) for how in ("+ 1", "* 2", "- 1")]
    else:
        enumerator = re.compile(rf"\b{name}\b(?: = \w+)?(?=,|\s*\}}|\s*/\*)")
        ways = [enumerator.sub(f"{name} = 77", text, count=1)]
    assert text not in ways, f"{name} was not changed in {header}"
    return [{**HEADERS, header: way} for way in ways]


def test_the_build_is_that_of_the_headers(tmp_path: Path) -> None:
    """What is compared is what processes compare."""
    assert fingerprint(tmp_path / "same", HEADERS) == _native.FINGERPRINT


@pytest.mark.parametrize("name", NAMES)
def test_a_constant(name: str, tmp_path: Path) -> None:
    """Another value is another fingerprint."""
    found = (fingerprint(tmp_path / str(n), way) for n, way in enumerate(changed(name)))
    other = next((each for each in found if each is not None), None)
    assert other is not None, f"no change of {name} compiles"
    assert other != _native.FINGERPRINT


@pytest.mark.parametrize("what", list(WORDS))
def test_a_word(what: str, tmp_path: Path) -> None:
    """Another packing is another fingerprint."""
    header, text, old, new = WORDS[what]
    whole = HEADERS[header]
    assert whole.count(text) == 1
    assert text.count(old) == 1
    way = whole.replace(text, text.replace(old, new))
    assert fingerprint(tmp_path / "copy", {**HEADERS, header: way}) not in (
        None,
        _native.FINGERPRINT,
    )


def test_places_change_and_a_stage_is_inserted(tmp_path: Path) -> None:
    """The same names, in another order or one more."""
    phases = HEADERS["slot.h"].replace("WH_ARMED = 1,", "WH_ARMED = 3,")
    phases = phases.replace("WH_FIRED = 3 }", "WH_FIRED = 1 }")
    stages = HEADERS["agreed.h"].replace("WH_STAGE_LENT, ", "WH_STAGE_NEW, WH_STAGE_LENT, ")
    for number, (header, text) in enumerate({"slot.h": phases, "agreed.h": stages}.items()):
        assert text != HEADERS[header]
        found = fingerprint(tmp_path / str(number), {**HEADERS, header: text})
        assert found not in (None, _native.FINGERPRINT)


def test_a_field(tmp_path: Path) -> None:
    """A field more, or two that change places."""
    more = '"before arm") \\\n    F(wh_au64, another, "new", "owner", "clock", "before arm")'
    text = HEADERS["layout.h"]
    flags = text.index("F(wh_au16, flags")
    end = text.index('"before arm")', flags)
    grown = text[:end] + more + text[end + len('"before arm")') :]
    grown = grown.replace("sizeof(wh_slot) == 32", "sizeof(wh_slot) == 40")
    swapped = text.replace("F(wh_au16, payload_size", "F(wh_au16, swap")
    swapped = swapped.replace("F(wh_au16, flags", "F(wh_au16, payload_size")
    swapped = swapped.replace("F(wh_au16, swap", "F(wh_au16, flags")
    for number, way in enumerate((grown, swapped)):
        found = fingerprint(tmp_path / str(number), {**HEADERS, "layout.h": way})
        assert found not in (None, _native.FINGERPRINT)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("pool.h", "#define WH_NEW 5\n"),
        ("clock.h", "enum wh_new { WH_NEW = 1, WH_NEWER };\n"),
        ("slot.h", "enum { WH_NEW };\n"),
    ],
)
def test_a_constant_that_nobody_listed(header: str, text: str) -> None:
    """It is found, wherever it is declared."""
    assert agreed.lapses(HEADERS) == []
    found = agreed.lapses({**HEADERS, header: text + HEADERS[header]})
    assert found
    assert all(where == header and "WH_NEW" in message for where, message in found)


def test_an_excuse_that_is_out_of_date() -> None:
    """What is gone, or listed, needs no excuse."""
    gone = HEADERS["drain.h"].replace("#define WH_DRAIN_AHEAD", "#define WHEELD_AHEAD")
    assert agreed.lapses({**HEADERS, "drain.h": gone}) == [
        ("agreed.h", "WH_DRAIN_AHEAD is excused and nowhere")
    ]
    listed = HEADERS["agreed.h"].replace("K(WH_NIL)", "K(WH_MAGAZINE)")
    assert ("agreed.h", "WH_MAGAZINE is both excused and listed") in agreed.lapses(
        {**HEADERS, "agreed.h": listed}
    )
