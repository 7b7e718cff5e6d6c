"""Packing: Python makes of random words what the core makes of them, one by one and in arrays."""

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proofs import sanitize
from wheeld_core import _native, packing
from wheeld_core.packing import PARTS

CALLS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "wh_id(%1, %2)": (packing.timer_id, (32, 30)),
    "wh_id_slot(%1)": (packing.id_slot, (64,)),
    "wh_id_gen(%1)": (packing.ID_GEN.of, (64,)),
    "wh_id_kind(%1)": (packing.ID_KIND.of, (64,)),
    "wh_id_with(%1, %2)": (lambda id, kind: id | packing.ID_KIND.put(kind), (30, 2)),
    "wh_state_gen(%1)": (packing.STATE_GEN.of, (64,)),
    "wh_state_version(%1)": (PARTS["STATE", "VERSION"].of, (64,)),
    "wh_state_taker(%1)": (packing.STATE_TAKER.of, (64,)),
    "wh_state_is_moved(%1)": (packing.STATE_MOVED.of, (64,)),
    "wh_state_phase(%1)": (packing.STATE_PHASE.of, (64,)),
    "wh_state(%1, 3)": (lambda gen: packing.state(gen, packing.Phase.FIRED), (32,)),
    "wh_state_of(%1, 0x9abcde, 4)": (lambda gen: packing.state(gen, 4, 0x9ABCDE), (32,)),
    "wh_owner_word(%1, %2)": (packing.owner_word, (12, 46)),
    "wh_owner_name(%1)": (packing.owner_name, (64,)),
    "wh_owner_incarnation(%1)": (packing.OWNER_INCARNATION.of, (64,)),
    "(int32_t)wh_owner_row(%1)": (packing.owner_row, (64,)),
    "wh_holder_word(%1, %2)": (packing.holder_word, (11, 64)),
    "(int32_t)wh_holder_row(%1)": (packing.holder_row, (32,)),
    "wh_target_word(%1, %2)": (packing.target_word, (11, 46)),
    "(int32_t)wh_target_worker(%1) - 1": (packing.target_row, (32,)),
    "wh_target_group(%1, %2)": (packing.target_group, (6, 32)),
    "wh_target_uses(%1)": (packing.TARGET_USES.of, (32,)),
    "wh_group_uses(%1)": (packing.GROUP_USES.of, (32,)),
    "wh_group_named(%1)": (packing.GROUP_NAMED.of, (32,)),
    "wh_completion_word(%1, %2, %3)": (packing.completion, (4, 12, 64)),
    "wh_completion_stage(%1)": (packing.COMPLETION_STAGE.of, (64,)),
    "wh_completion_worker(%1)": (packing.COMPLETION_WORKER.of, (64,)),
    "wh_completion_position(%1)": (packing.COMPLETION_POSITION.of, (64,)),
    "wh_pos_before(%1, %2)": (
        lambda position, limit: packing.position_before(np.asarray(position), limit), (48, 64)),
    "wh_used_word(%1, %2, %3)": (packing.used_word, (38, 12, 64)),
    "wh_used_bytes(%1)": (packing.USED_BYTES.of, (64,)),
    "wh_used_row(%1)": (packing.USED_ROW.of, (64,)),
    "wh_used_ahead(%1, %2)": (
        lambda word, change: packing.USED_CHANGE.of(word - change), (64, 64)),
    "wh_reaping_word(%1, %2)": (packing.reaping_word, (12, 48)),
    "wh_word_state(%1)": (packing.TAG_STATE.of, (64,)),
    "wh_flags_clock(%1)": (packing.FLAGS_CLOCK.of, (16,)),
}  # fmt: skip
"""Expressions in C, and the same in Python with how many bits each argument has."""

N = 200


def of_c(directory: Path, columns: dict[str, list[list[int]]]) -> list[list[int]]:
    lines = ["#include <stdio.h>", '#include "wheeld/shared/packing.h"', "int main(void) {"]
    for call, rows in columns.items():
        for row in rows:
            text = call
            for number, value in enumerate(row, 1):
                text = text.replace(f"%{number}", f"{value:#x}ull")
            lines.append(f'printf("%lld\\n", (long long)({text}));')
    source, binary = directory / "print.c", directory / "print"
    source.write_text("\n".join([*lines, "}"]))
    compiler = (sanitize.compiler() or "").split()
    flags = ["-std=c11", "-w", f"-I{sanitize.INCLUDE}"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(binary)], check=True)
    printed = subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split()
    return np.array([int(each) for each in printed]).reshape(len(columns), -1).tolist()


@pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC")
def test_python_packs_as_the_core_does(tmp_path: Path, rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    columns = {
        call: [[0 for _ in bits], [2**b - 1 for b in bits]]
        + [[rng.getrandbits(b) for b in bits] for _ in range(N)]
        for call, (_, bits) in CALLS.items()
    }
    for (call, (function, _)), expected in zip(CALLS.items(), of_c(tmp_path, columns), strict=True):
        rows = columns[call]
        signed = np.array(expected, np.int64).view(np.uint64)
        alone = [int(function(*row)) & 2**64 - 1 for row in rows]
        assert alone == signed.tolist(), call
        arrays = function(*(np.array(column, np.uint64) for column in zip(*rows, strict=True)))
        assert arrays.astype(np.uint64).tolist() == signed.tolist(), call


def test_parts_of_a_word_lie_beside_one_another() -> None:
    for word in {word for word, _ in PARTS}:
        parts = {name: part for (of, name), part in PARTS.items() if of == word}
        parts.pop({"TARGET": "INCARNATION", "STATE": "TAKER"}.get(word, ""), None)
        assert sum(part.mask for part in parts.values()) < 2**64
        joined = 0
        for part in parts.values():
            assert joined & part.mask == 0
            joined |= part.mask
        assert joined <= 2**64 - 1


def test_a_value_that_does_not_fit_is_cut() -> None:
    for part in PARTS.values():
        values = np.array([part.most + 1, 2**64 - 1], np.uint64)
        assert part.put(values).tolist() == [0, part.mask]
        assert [part.put(int(value)) for value in values] == [0, part.mask]
        assert part.of(part.put(part.most)) == part.most
    assert packing.owner_row(_native.SPLIT) == _native.SPLIT - 1
