"""A supervisor begins: it looks at what the last one left, and takes it over, removes
it, or refuses to start. Here in this process, without the rest of a daemon."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from left_memory import (
    leave_with_a_timer,
    names_of,
    path_of,
    place_of,
    set_head,
    set_word,
    write_facts,
)
from wheeld.config.settings import Config
from wheeld.resources.owned import Resources
from wheeld.tables.heads import SHARED
from wheeld_client import WheelError
from wheeld_core import _native, segments
from wheeld_core.views import PoolsView, RegistryView, dtype_of

KINDS = ["wheel", "slots", "registry", "watch", "keys", "pools"]


def begins_anew(config: Config, caplog: pytest.LogCaptureFixture, why: str) -> None:
    resources = Resources(config)
    assert resources.taken_over is False
    assert why in caplog.text
    assert len(names_of(config)) == len(KINDS)
    resources.close()
    assert names_of(config) == []
    assert not place_of(config).exists()


def test_what_was_just_left_is_taken_over(config: Config) -> None:
    Resources(config).close(discard=False)
    before = sorted(names_of(config))
    resources = Resources(config)
    assert (resources.taken_over, sorted(names_of(config))) == (True, before)
    resources.close()


def test_died_before_it_made_segments(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    write_facts(config, segment_prefix=f"wheeld-{config.name}-0123456789ab-")
    begins_anew(config, caplog, "")


@pytest.mark.parametrize("made", [KINDS[:count] for count in range(1, 7)])
def test_died_while_it_made_segments(
    config: Config, caplog: pytest.LogCaptureFixture, made: list[str]
) -> None:
    prefix = f"wheeld-{config.name}-0123456789ab-"
    write_facts(config, segment_prefix=prefix)
    for kind in made:
        segments.create(prefix + kind, 8192)
    begins_anew(config, caplog, f"removing what an earlier daemon left ({len(made)} segments")


def set_boot(resources: Resources) -> None:
    RegistryView(resources.memories["registry"]).header["boot_id"] = b"0" * 36


REMAINS: dict[str, tuple[Callable[[Resources], object], str]] = {
    "not ready": (set_head("wheel", "magic", 0), "not ready"),
    "another version": (set_head("wheel", "layout_version", 1), "another version: .* version 1 "),
    "the version before": (
        set_head("wheel", "layout_version", 2),
        "another version: .* version 2 ",
    ),
    "another build": (set_head("registry", "fingerprint", 1), "another version: "),
    "another daemon's": (set_head("registry", "token", 1), "to different daemons"),
    "earlier boot": (set_boot, "from an earlier boot"),
    "not finished": (
        lambda left: _native.set_daemon_state(left.memories["wheel"], 2),
        "was being stopped and did not finish",
    ),
    "missing": (lambda left: path_of(left, "registry").unlink(), "No such file"),
    "no slots": (lambda left: path_of(left, "slots").unlink(), "slots is gone"),
    "truncated": (
        lambda left: os.truncate(path_of(left, "wheel"), 8192),
        "shorter than its header says",
    ),
    "empty": (lambda left: os.truncate(path_of(left, "wheel"), 0), "is empty"),
}


@pytest.mark.parametrize("case", REMAINS)
def test_remains_that_cannot_be_used(
    config: Config, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    damage, why = REMAINS[case]
    left = Resources(config)
    left.close(discard=False)
    damage(left)
    begins_anew(config, caplog, "removing what an earlier daemon left")
    assert re.search(why, caplog.text)


GARBAGE = {
    "empty": b"",
    "not JSON": b"\xff\xfe{",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "another prefix": b'{"segment_prefix": "wheeld-"}',
    "a path": b'{"segment_prefix": "wheeld-x-/../"}',
    "a number": b'{"segment_prefix": 7}',
}


@pytest.mark.parametrize("case", [*GARBAGE, "of another daemon"])
def test_daemon_file_that_is_garbage(config: Config, case: str) -> None:
    """It names nothing that could be taken over or removed; a daemon called "a" has no claim to the
    segments of one called "a-b"."""
    innocent = f"wheeld-{config.name}-b-0123456789ab-wheel"
    segments.create(innocent, 4096)
    write_facts(config, GARBAGE.get(case), segment_prefix=innocent.removesuffix("wheel"))
    for fresh in (False, True):
        resources = Resources(config, fresh)
        assert resources.taken_over is False
        resources.close()
        assert names_of(config) == [innocent]


def plant(kind: str, path: Path, victim: Path) -> None:
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text(victim.read_text())
        os.chown(path, 65534, 65534)


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "another user's"])
def test_daemon_file_that_is_no_file_of_ours(config: Config, kind: str, tmp_path: Path) -> None:
    if kind == "another user's" and os.getuid() != 0:
        pytest.skip("needs root")
    segment = f"wheeld-{config.name}-0123456789ab-wheel"
    segments.create(segment, 4096)
    victim = tmp_path / "victim"
    victim.write_text(json.dumps({"segment_prefix": segment.removesuffix("wheel")}))
    before = victim.read_text()
    path = write_facts(config)
    path.unlink()
    plant(kind, path, victim)
    for fresh in (False, True):
        with pytest.raises(WheelError, match=f"{path} is not a file of this daemon.*; remove it"):
            Resources(config, fresh)
    assert victim.read_text() == before
    assert names_of(config) == [segment]
    assert os.path.lexists(path)


DIFFERENT = {
    "capacity": (256, "--capacity 1024 (this start: 256)"),
    "max_workers": (9, "--max-workers 64 (this start: 9)"),
    "tick": ("2500us", "--tick 1ms (this start: 2500us)"),
    "wheel_size": (256, "--wheel-size 64 (this start: 256)"),
    "payload_bytes": (30, "--payload-bytes 0 (this start: 32)"),
    "virtual_clock": (True, "--virtual-clock off (this start: on)"),
}


@pytest.mark.parametrize("key", DIFFERENT)
def test_each_option_is_named(config: Config, key: str) -> None:
    value, words = DIFFERENT[key]
    leave_with_a_timer(config)
    before = sorted(names_of(config))
    with pytest.raises(WheelError, match=re.escape(words)):
        Resources(replace(config, **{key: value}))
    assert sorted(names_of(config)) == before


POOLS = ("a=1M", "b=64K,strict,largest=4K")
OTHER_POOLS = {
    "none": (
        (),
        ["--pool a=1M (this start: none)", "--pool b=64K,strict,largest=4K (this start: "],
    ),
    "size": (("a=2M", POOLS[1]), ["with --pool a=1M (this start: a=2M): start"]),
    "strict": ((POOLS[0], "b=64K,largest=4K"), ["(this start: b=64K,largest=4K)"]),
    "largest": ((POOLS[0], "b=64K,strict"), ["(this start: b=64K,strict)"]),
    "one more": ((*POOLS, "c=1000"), ["no pool c (this start: c=1000)"]),
    "another name": (("x=1M", POOLS[1]), ["--pool a=1M (this start: none)", "no pool x (this s"]),
}


@pytest.mark.parametrize("case", OTHER_POOLS)
def test_each_pool_is_named(config: Config, case: str) -> None:
    pools, words = OTHER_POOLS[case]
    config = replace(config, pools=POOLS)
    leave_with_a_timer(config)
    before = sorted(names_of(config))
    with pytest.raises(WheelError) as caught:
        Resources(replace(config, pools=pools))
    for text in (*words, "start with the same options", "--fresh"):
        assert text in str(caught.value)
    assert sorted(names_of(config)) == before


def test_the_same_pools_in_other_words(config: Config) -> None:
    Resources(replace(config, pools=POOLS)).close(discard=False)
    resources = Resources(replace(config, pools=("b=65536,largest=4096,strict", "a=1024K")))
    assert resources.taken_over
    assert PoolsView(resources.memories["pools"]).names() == ["a", "b"]
    resources.close()
    assert names_of(config) == []


def test_fresh_pools(config: Config) -> None:
    Resources(replace(config, pools=POOLS)).close(discard=False)
    resources = Resources(replace(config, pools=("c=5",)), fresh=True)
    assert PoolsView(resources.memories["pools"]).names() == ["c"]
    resources.close()
    assert names_of(config) == []


def scribble(kind: str, size: int) -> Callable[[Resources], None]:
    def damage(resources: Resources) -> None:
        memoryview(resources.memories[kind])[:size] = b"\xa5" * size

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
"""Damage by members of the group, but for the last ones. 40 KiB of slots have all states."""


def heads_of(resources: Resources) -> list[object]:
    pools = PoolsView(resources.memories["pools"])
    return [
        *(len(resources.memories[kind]) for kind in SHARED),
        *(path_of(resources, kind).stat().st_mode for kind in SHARED),
        *(
            bytes(memoryview(resources.memories[kind])[:size])
            for kind, size in (("slots", 128), ("watch", 64))
        ),
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
    """A start believes the pools of the segment while they can be true; then its own, if there were
    just so many; else it is refused, and the memory stays."""
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
