"""The fingerprint: two builds that mean different things by a word of shared memory never meet.

Each constant, each part of a word and each shift is changed, and the fingerprint with it; what is
in no list is found by the house rule.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import agreed
from proofs import sanitize
from wheeld_core import _native

pytestmark = pytest.mark.skipif(
    sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"
)

PROGRAM = """
#include <stdio.h>
#include "wheeld/shared/geometry.h"
int main(void) { printf("%016llx", (unsigned long long)wh_fingerprint()); }
"""
EACH_CHANGED = """
#include <stdio.h>
#include "wheeld/shared/geometry.h"
#define CHANGE(of, what) \\
    (of)++, printf("%s" what " %016llx\\n", text, (unsigned long long)wh_fingerprint()), (of)--
int main(void)
{
    uint8_t nothing = 0;
    const char *text = "unchanged";
    CHANGE(nothing, "");
    text = wh_constant_names;
    for (size_t i = 0; i < sizeof wh_constants / 8; i++, text = wh_text_after(text))
        CHANGE(wh_constants[i], "");
    text = wh_part_names;
    for (size_t i = 0; i < sizeof wh_part_bits / 2; i++, text = wh_text_after(text))
        CHANGE(wh_part_bits[i].at, " at"), CHANGE(wh_part_bits[i].bits, " bits");
}
"""
FILES = {path.name: path for path in (sanitize.INCLUDE / "wheeld").glob("*/*.h")}
HEADERS = {path.name: path.read_text() for path in FILES.values()}
NAMES = agreed.LISTED.findall(HEADERS["agreed.h"])

PARTS = re.findall(r"^    P\((\w+), (\w+), (\d+), (\d+),", HEADERS["packing.h"], re.MULTILINE)
WORDS = {
    "slot of an id": ("packing.h", "return WH_PUT(ID_GEN, gen) | slot;", "slot", "(slot + 1)"),
    "kind of an id": ("packing.h", "return id | WH_PUT(ID_KIND, kind);", "kind)", "2 * kind)"),
    "phase of a state": ("packing.h", "WH_PUT(STATE_GEN, gen) | phase;", "phase", "2 * phase"),
    "version of a state": ("packing.h", "s + WH_PUT(STATE_VERSION, 1)", "1", "2"),
    "end of a state": ("packing.h", "(s & ~WH_MASK(STATE_PHASE)) | phase", "PHASE", "VERSION"),
    "wrap of generations": ("packing.h", "return gen + 1 ? gen + 1 : 1;", ": 1", ": 2"),
    "owner": ("packing.h", "WH_PUT(OWNER_INCARNATION, incarnation) | (worker + 1)", "+ 1", "+ 2"),
    "owner's name": ("packing.h", "word & ~(WH_PARKED | WH_TAKING)", "WH_TAKING", "WH_PARKED"),
    "taker": ("packing.h", "WH_PUT_LOW(TAKER_WORKER, owner)", "owner", "owner + 1"),
    "target": ("packing.h", "(TARGET_INCARNATION, incarnation) | (worker + 1)", "+ 1", "+ 2"),
    "uses of a group": ("packing.h", "WH_PUT_LOW(TARGET_USES, uses)", "uses", "uses + 1"),
    "names of a group": ("packing.h", "WH_PUT_LOW(GROUP_USES, uses)", "uses", "uses + 1"),
    "position": ("packing.h", "WH_PUT_LOW(COMPLETION_POSITION, position)", "_LOW", ""),
    "bytes of a pool": ("packing.h", "WH_PUT(USED_BYTES, bytes)", "bytes", "2 * bytes"),
    "a reaping": ("packing.h", "WH_PUT(REAPING_CHANGE, change) | (row + 1)", "+ 1", "+ 2"),
    "what is before": ("packing.h", "(COMPLETION_POSITION, limit - pos48)", "limit - pos48",
                       "pos48 - limit"),
    "a value in place": ("packing.h", "((uint64_t)(value) << WH_##part##_AT)", "_AT", "_BITS"),
    "the hash of a key": ("key_hash.h", "0xd6e8feb86659fd93ull", "d93", "d95"),
    "the bucket of a key": ("key_hash.h", "(uint32_t)(h & 0xffff)", "h &", "h >> 16 &"),
    "size of a ring": ("geometry.h", "wh_bits_between(c->capacity / 32, 10, 15)", "/ 32", "/ 16"),
    "where slots begin": ("geometry.h", "wh_align(g.owners_off + 8ull", "8ull", "16ull"),
}  # fmt: skip
"""By what it is: header, the text, and in there the old and the new."""


def fingerprint(directory: Path, headers: dict[str, str], program: str = PROGRAM) -> str | None:
    for name, text in headers.items():
        copy = directory / FILES[name].relative_to(sanitize.INCLUDE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    source, binary = directory / "print.c", directory / "print"
    source.write_text(program)
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


def test_the_build_is_that_of_the_headers(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "same", HEADERS) == _native.FINGERPRINT


def test_constants_and_parts(tmp_path: Path) -> None:
    """The tables are the lists; each of their values is changed in turn, in one program."""
    text = HEADERS["agreed.h"]
    for table in ("const struct wh_part_bits", "const uint64_t wh_constants"):
        assert text.count(f"static {table}") == 1
        text = text.replace(f"static {table}", f"static {table.removeprefix('const ')}")
    printed = fingerprint(tmp_path / "tables", {**HEADERS, "agreed.h": text}, EACH_CHANGED)
    assert printed is not None
    found = dict(line.rsplit(" ", 1) for line in printed.splitlines())
    parts = [f"{word} {part} {of}" for word, part, *_ in PARTS for of in ("at", "bits")]
    assert found.pop("unchanged") == _native.FINGERPRINT
    assert list(found) == [*NAMES, *parts]
    assert len(PARTS) == len(_native.packing())
    assert len({_native.FINGERPRINT, *found.values()}) == 1 + len(found)


@pytest.mark.parametrize("what", list(WORDS))
def test_a_word(what: str, tmp_path: Path) -> None:
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
    states = HEADERS["states.h"]
    phases = states.replace("WH_ARMED = 1,", "WH_ARMED = 3,").replace(
        "WH_FIRED = 3,", "WH_FIRED = 1,"
    )
    stages = states.replace("WH_STAGE_LENT, ", "WH_STAGE_NEW, WH_STAGE_LENT, ")
    for number, text in enumerate((phases, stages)):
        assert text != states
        found = fingerprint(tmp_path / str(number), {**HEADERS, "states.h": text})
        assert found not in (None, _native.FINGERPRINT)


def test_a_field(tmp_path: Path) -> None:
    more = '    F(wh_au64, another, "new", "owner", "clock", "before arm")'
    text = HEADERS["layout.h"]
    flags = text.index("F(wh_au16, flags")
    end = text.index("\n\n", flags)
    grown = text[:end].removesuffix(")") + ") \\\n" + more + text[end:]
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
    assert agreed.lapses(HEADERS) == []
    found = agreed.lapses({**HEADERS, header: text + HEADERS[header]})
    assert found
    assert all(where == header and "WH_NEW" in message for where, message in found)


def test_an_excuse_that_is_out_of_date() -> None:
    gone = HEADERS["drain.h"].replace("#define WH_DRAIN_AHEAD", "#define WHEELD_AHEAD")
    assert agreed.lapses({**HEADERS, "drain.h": gone}) == [
        ("agreed.h", "WH_DRAIN_AHEAD is excused but not defined")
    ]
    listed = HEADERS["agreed.h"].replace("K(WH_NIL)", "K(WH_MAGAZINE)")
    assert ("agreed.h", "WH_MAGAZINE is both excused and listed") in agreed.lapses(
        {**HEADERS, "agreed.h": listed}
    )
