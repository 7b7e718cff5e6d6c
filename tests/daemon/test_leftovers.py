"""What a supervisor does first: it looks at what the last one left, and takes it over, removes
it, or refuses to start. Here in this process, without the rest of a daemon."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from left_memory import leave_with_a_timer, names_of, path_of, place_of, set_head, write_facts
from wheeld.config.settings import Config
from wheeld.resources.owned import Resources
from wheeld_client import WheelError
from wheeld_core import _native, segments
from wheeld_core.views import PoolsView, RegistryView

KINDS = ["wheel", "slots", "registry", "watch", "pools"]


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


@pytest.mark.parametrize("made", [KINDS[:count] for count in range(1, 6)])
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
