"""What others wrote over the heads of a killed daemon's segments, or cut off: its wheel goes on."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from left_memory import leave_with_a_timer, names_of, path_of, place_of, set_head, set_word
from wheeld.config.settings import Config
from wheeld.resources.owned import Resources
from wheeld.tables.heads import SHARED
from wheeld_client import WheelError
from wheeld_core import segments
from wheeld_core.views import PoolsView, dtype_of


def scribble(kind: str, size: int) -> Callable[[Resources], None]:
    def damage(resources: Resources) -> None:
        resources.memories[kind][:size] = b"\xa5" * size

    return damage


def cut(kind: str, size: int) -> Callable[[Resources], None]:
    return lambda left: os.truncate(path_of(left, kind), size)


HEADS: dict[str, Callable[[Resources], object]] = {
    "slots not ready": set_head("slots", "magic", 0),
    "slots of another version": set_head("slots", "layout_version", 1),
    "slots of another daemon": set_head("slots", "token", 1),
    "slots that lie": set_word("slots", "states_off", 2**40),
    "slots that end elsewhere": set_word("slots", "payloads_off", 64),
    "all of slots' head": scribble("slots", int(dtype_of("slots").fields["freed"][1])),
    "watch of another size": set_word("watch", "row_count", 63),
    "watch that lies": set_word("watch", "rows_off", 2**40),
    "all of watch's head": scribble("watch", dtype_of("watch").itemsize),
    "pools of another daemon": set_head("pools", "token", 1),
    "pools that lie": set_word("pools", "ledgers_off", 8),
    "pools of other workers": set_word("pools", "ledger_count", 7),
    "too many pools": set_word("pools", "pool_count", 17),
    "another number of pools": set_word("pools", "pool_count", 16),
    "all of pools' head": scribble("pools", 400),
    "watch cut short": cut("watch", 4096),
    "pools cut short": cut("pools", 0),
    "watch too long": cut("watch", 1 << 20),
    "slots cut short": cut("slots", 40_960),
    "no watch": lambda left: path_of(left, "watch").unlink(),
    "no pools": lambda left: path_of(left, "pools").unlink(),
}
"""What those may do who may write there, but for the last ones. 40 KiB of slots have all states."""


def heads_of(resources: Resources) -> list[object]:
    pools = PoolsView(resources.memories["pools"])
    return [
        *(len(resources.memories[kind]) for kind in SHARED),
        *(path_of(resources, kind).stat().st_mode for kind in SHARED),
        *(resources.memories[kind][:size] for kind, size in (("slots", 128), ("watch", 64))),
        pools.header.tolist(),
        pools.pools[["name", "size", "largest", "strict"]].tolist(),
    ]


@pytest.mark.parametrize("case", HEADS)
@pytest.mark.parametrize("pools", [(), ("a=1M", "b=64K,strict,largest=4K")])
def test_heads_that_workers_overwrote(
    config: Config, caplog: pytest.LogCaptureFixture, case: str, pools: tuple[str, ...]
) -> None:
    config = replace(config, pools=pools)
    left = Resources(config)
    left.slots.states[0] = 1
    wanted = heads_of(left)
    left.close(discard=False)
    HEADS[case](left)
    resources = Resources(replace(config, pools=pools[::-1]))
    assert resources.taken_over
    assert resources.slots.armed().tolist() == [0]
    assert heads_of(resources) == wanted
    assert "repaired" in caplog.text or "truncated" in caplog.text
    resources.mend()
    assert heads_of(resources) == wanted
    resources.close()


def test_heads_that_are_overwritten_while_they_are_looked_at(config: Config) -> None:
    leave_with_a_timer(config)
    resources = Resources(config)
    wanted = heads_of(resources)
    for damage in (scribble("slots", 128), scribble("watch", 64), scribble("pools", 96)):
        damage(resources)
        resources.mend()
        assert heads_of(resources) == wanted
    resources.close()


@pytest.mark.parametrize("told", [None, 7, [7], ["a"]])
def test_pools_that_no_file_tells_of(
    config: Config, caplog: pytest.LogCaptureFixture, told: object
) -> None:
    """Those of the segment are believed while they can be; then those of this start, if just so
    many have been there; else the start is refused, and the memory stays."""
    config = replace(config, pools=("a=1M", "b=64K"))
    leave_with_a_timer(config)
    path = place_of(config) / "daemon.json"
    facts = json.loads(path.read_text())
    assert facts["pools"] == ["a=1M", "b=64K"]
    path.write_text(json.dumps({**facts, "pools": told}))
    if told == ["a"]:
        with pytest.raises(WheelError, match="cannot take over its memory: pool 'a'"):
            Resources(config)
        return
    left = Resources(config)
    assert left.taken_over
    left.close(discard=False)
    path.write_text(json.dumps({**facts, "pools": told}))
    scribble("pools", 96)(left)
    before = sorted(names_of(config))
    many = tuple(f"p{i}=1M" for i in range(16))
    with pytest.raises(WheelError, match=r"same --pool options.*It stays, with all timers"):
        Resources(replace(config, pools=many))
    assert sorted(names_of(config)) == before
    resources = Resources(config)
    assert resources.slots.armed().tolist() == [0]
    assert PoolsView(resources.memories["pools"]).names() == ["a", "b"]
    resources.close()


@pytest.mark.parametrize("what", ["a link", "no room"])
def test_memory_that_cannot_be_mended_stays(
    config: Config, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    leave_with_a_timer(config)
    facts = json.loads((place_of(config) / "daemon.json").read_text())
    path = Path("/dev/shm", facts["segment_prefix"] + "watch")
    path.unlink()
    with monkeypatch.context() as patch:
        if what == "a link":
            path.symlink_to("/dev/null")
        else:
            full = segments.SegmentError("/dev/shm is too small")
            patch.setattr(segments, "reserve", lambda *_: exec("raise full", {"full": full}))
        before = sorted(names_of(config))
        with pytest.raises(WheelError, match=r"It stays, with all timers.*--fresh to discard"):
            Resources(config)
        path.unlink()
        assert {path.name, *names_of(config)} == set(before) | {path.name}
    resources = Resources(config)
    assert resources.slots.armed().tolist() == [0]
    resources.close()
