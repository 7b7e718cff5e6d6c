"""The sweeps of tests/c/sweep in a short form: every path, but only some of its instructions.

`python -m proofs.sweep` takes all of them, for as long as it is given. Here it is also seen that
the sweeps can fail: the core is broken in one place, and they say so.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from proofs import sanitize, sweep
from seeds import SEED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"),
]

STRIDES = {
    "kill_worker": 40,
    "kill_clock": 120,
    "kill_trace": 120,
    "kill_trace_full": 120,
    "kill_pairs": 4,
    "pause": 150,
    "corrupt": 1,
    "kill_pool": 12,
    "pause_pool": 6,
    "kill_watch": 6,
    "pause_watch": 6,
    "kill_words": 12,
    "pause_words": 12,
    "kill_leases": 40,
    "pause_leases": 40,
    "kill_limits": 12,
    "pause_limits": 12,
    "kill_keys": 60,
    "pause_keys": 60,
    "kill_kept": 40,
    "pause_kept": 40,
    "pause_row": 1,
    "corrupt_sharing": 1,
}
"""How far apart the stops are, at most: a second or a few for each program."""

LONG = ("clear", "leave")
LONG_PATHS = ("kill_watch", "pause_watch")
"""Programs whose `LONG` paths, of 400,000 instructions, stop here at operations on atomics. So do
all of kill_pairs. `make sweep` takes them by instructions, as it does all others."""

BROKEN = {
    "a record is published before it is written": (
        "kill_clock",
        "fire",
        "deliver.h",
        "    peer->comps[peer->comp_tail & (c->comp_size - 1)] = *record;",
        "    wh_store_seq(&peer->port->comp_tail, peer->comp_tail + 1);\n    wh_step();\n{}",
    ),
    "a timer that was cancelled before it was met ends twice for the trace": (
        "kill_trace_full",
        "drain-cancelled",
        "drain.h",
        "            wh_return(c, slot, owner);\n            return;",
        "            wh_count(&c->trace.seg->counts[WH_TRACE_CANCELLED], 1);\n{}",
    ),
    "a recovered clock sends again what is out": (
        "kill_clock",
        "loans",
        "recover.h",
        "    bool out = wh_stage_worker(link) < c->max_workers && wh_published(c, link);",
        "    bool out = false;",
    ),
    "a timer is armed before its fields are written": (
        "kill_worker",
        "schedule",
        "client.h",
        "    wh_store_relaxed(&s->deadline, r->deadline);\n",
        "    wh_store_seq(&c->states[index], wh_state(gen, WH_ARMED));\n{}",
    ),
    "a submission is published before it is written": (
        "pause",
        "schedule",
        "client.h",
        "    wh_store_relaxed(&c->subs[c->sub_tail++",
        "    wh_store_seq(&c->seg->sub_tail, c->sub_tail + 1);\n{}",
    ),
    "a submission's slot is not checked": (
        "corrupt",
        "own",
        "drain.h",
        "!wh_slab_there(c, slot >> WH_SLAB_BITS) || gen == 0",
        "gen == 0",
    ),
    "a change of a pool is overwritten and not noted": (
        "kill_pool",
        "note-allocate",
        "pool.h",
        "        wh_budget_note(b, word);",
        "",
    ),
    "a name in a pool that comes round is taken for the next one": (
        "pause_pool",
        "allocate",
        "pool.h",
        "    wh_store_release(&l->made, change + 1);",
        "",
    ),
    "a mark is set and its watcher is not told that there is one": (
        "pause_watch",
        "check",
        "watch.h",
        "    if (!(wh_load_seq(&theirs->any) & part))",
        "    if (0)",
    ),
    "what a dead checker has noted is not marked": (
        "kill_watch",
        "check-asleep",
        "watch.h",
        "            wh_watch_mark_all(&w, wh_hash_bucket(hash), wh_hash_mark(hash));",
        "            (void)0;",
    ),
    "a place of a word is emptied while somebody touches it": (
        "pause_words",
        "empty",
        "directory.h",
        "bool alone = ours && !wh_words_touched(k, place);",
        "bool alone = ours;",
    ),
    "a name is believed to be of an incarnation that is read after it": (
        "pause_row",
        "look-up",
        "rows.h",
        "target = wh_row_target(&rows[i], i, name);",
        "target = wh_target_word(i, rows[i].incarnation);",
    ),
    "a dead watcher's marks stay": (
        "kill_watch",
        "look",
        "watch.h",
        "        wh_exchange_seq(&w.mine->dirty[i], 0);",
        "        (void)0;",
    ),
    "what was taken of a limit meanwhile is overwritten": (
        "pause_limits",
        "rate-used",
        "limits.h",
        "taken = wh_cas_seq(word, &found, wh_limit_word(ends, 0, 0));",
        "taken = true;\n            wh_store_seq(word, wh_limit_word(ends, 0, 0));",
    ),
    "a place of a log is taken before it is written": (
        "kill_limits",
        "log-used",
        "limits.h",
        "    for (uint32_t i = 0; i < n; i++) {\n        enum wh_limited wrote",
        "    wh_log_word(0, 0, 0, 0);\n    wh_limit_swap(k, log->key, head.word, head.word + n);\n"
        "    head = wh_log_head_of(head.word + n);\n{}",
    ),
    "the row in a pool's journal is not checked": (
        "corrupt_sharing",
        "pools",
        "pool.h",
        "row >= b->ledger_count - 1",
        "row == UINT32_MAX",
    ),
}
"""By what is broken: program and path that find it; file, text, what stands there instead."""


def swept(program: str, stride: int, **options: Any) -> int:
    tally = sweep.sweep([program], seed=SEED % 2**31, stride=stride, quiet=True, **options)[program]
    assert not tally.failures, "\n".join(tally.failures)
    return tally.stops


@pytest.mark.parametrize("program", list(sweep.PROGRAMS))
def test_program(program: str) -> None:
    stride, by_points = STRIDES[program], {"optimise": sweep.BY_POINTS}
    if program == "kill_pairs":
        stops = swept(program, stride, **by_points)
    elif program in LONG_PATHS:
        others = set(sweep.paths(sweep.build(program))) - set(LONG)
        stops = swept(program, stride, only=others) + swept(program, 4, only=LONG, **by_points)
    else:
        stops = swept(program, stride)
    assert stops > 100


@pytest.mark.parametrize("what", list(BROKEN))
def test_broken_core(what: str, tmp_path: Path) -> None:
    program, path, name, text, instead = BROKEN[what]
    include = tmp_path / "include"
    shutil.copytree(sanitize.INCLUDE, include)
    (header,) = include.rglob(name)
    whole = header.read_text()
    assert whole.count(text) == 1
    header.write_text(whole.replace(text, instead.replace("{}", text)))
    options: dict[str, Any] = {"include": include, "optimise": "-O1"}  # compiles in half the time
    found = sweep.sweep([program], seed=1, rounds=4, only=[path], quiet=True, **options)
    tally = found[program]
    assert tally.failures, f"no stop of {tally.stops} showed it"
    assert f"FAIL {program} --path " in tally.failures[0]
