"""Options of a trace, and what a start does with the trace segment that it finds; no daemons."""

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wheeld.config.settings import Config, ConfigError, load
from wheeld.doctor import trace as doctor_trace
from wheeld.embedding import _options
from wheeld.resources import trace_segment as segment
from wheeld.resources.owned import Resources
from wheeld.resources.remains import DaemonMemory, groups
from wheeld_core import _native, segments
from wheeld_core.errors import WheelError
from wheeld_core.views import record
from wheeld_core.views.trace import TraceView

MAX_RING = 1 << _native.MAX_TRACE_BITS


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"trace": ""}, ("trace = ''", "expected a directory")),
        ({"trace": 5}, ("trace = 5", "expected a string")),
        ({"trace_ring": 1000}, ("trace_ring = 1000", "power of two", "1024")),
        ({"trace_ring": 8}, ("trace_ring = 8", "16 to")),
        ({"trace_ring": 2 * MAX_RING}, ("trace_ring", str(MAX_RING))),
        ({"trace_ring": "many"}, ("trace_ring", "'many'", "int")),
        ({"trace_every": "1ms"}, ("trace_every = '1ms'", "100ms to 24h", "'60s'")),
        ({"trace_every": "2d"}, ("trace_every = '2d'", "24h")),
        ({"trace_keep": "7x"}, ("trace_keep = '7x'", "'7d'")),
        ({"trace_keep": "0d"}, ("trace_keep = '0d'", "1s to")),
        ({"trace_bytes": "10 X"}, ("trace_bytes = '10 X'", "'10G'")),
        ({"trace_bytes": "0"}, ("trace_bytes = '0'", "'500M'")),
        ({"trace_bytes": "-1G"}, ("trace_bytes = '-1G'",)),
        ({"trace_bytes": "9999999T"}, ("trace_bytes = '9999999T'",)),
    ],
)
def test_bad_options(values: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(values)
    for word in words:
        assert word in str(caught.value)


def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load({}) == Config()
    assert (Config().trace_every_ns, Config().trace_keep_ns) == (60 * 10**9, None)
    assert (Config().trace_bits, Config().trace_most_bytes) == (20, None)
    path = tmp_path / "x.toml"
    path.write_text("trace = '/tmp/t'\ntrace_ring = 4096\ntrace_keep = '7d'\ntrace_bytes = '10g'")
    monkeypatch.setenv("WHEELD_TRACE_RING", "8192")
    found = load({"trace_every": "1.5s"}, path)
    assert (found.trace, found.trace_bits, found.trace_every_ns) == ("/tmp/t", 13, 1_500_000_000)
    assert (found.trace_keep_ns, found.trace_most_bytes) == (7 * 86400 * 10**9, 10 << 30)
    assert found.notes() == []
    assert "without trace" in load({"trace_keep": "1d"}).notes()[0]


def test_embedded_options() -> None:
    options = json.loads(_options("x", "/y", {"trace": Path("/tmp/t"), "trace_ring": 16}))
    assert (options["trace"], options["trace_ring"]) == ("/tmp/t", "16")


@pytest.mark.parametrize(
    "module", ["wheeld.cli.app", "wheeld.supervisor.server", "wheeld.clock.process"]
)
def test_only_the_recorder_loads_pyarrow(module: str) -> None:
    program = f"import sys, {module}; assert 'pyarrow' not in sys.modules; print('ok')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_the_recorder_loads_nothing_else() -> None:
    large = ("typer", "rich", "pyspark", "pandas", "wheeld.cli.app")
    program = "import sys, wheeld.recorder.process; print([m for m in {} if m in sys.modules])"
    command = [sys.executable, "-c", program.format(large)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# -- the segment -----------------------------------------------------------------------------------


@pytest.fixture
def config(runtime_dir: Path, daemon_name: str, tmp_path: Path) -> Iterator[Config]:
    yield Config(
        daemon_name, capacity=1024, runtime_dir=str(runtime_dir), trace=str(tmp_path / "trace"),
        trace_ring=64,
    ).check()  # fmt: skip
    segments.unlink_all(f"wheeld-{daemon_name}-")


def trace_path(resources: Resources) -> Path:
    there = segments.of_daemon(resources.segment_prefix, os.getuid())
    return Path("/dev/shm", there.get("trace", "none"))


def leave(config: Config) -> Resources:
    resources = Resources(config)
    resources.close(discard=False)
    return resources


def test_made_with_the_wheel(config: Config) -> None:
    resources = Resources(config)
    memory = resources.memories["trace"]
    view = TraceView(memory)
    assert (view.size, view.capacity, view.waiting) == (64, 1024, 0)
    tokens = {int(record(m, "head")["token"]) for m in resources.memories.values()}
    assert len(tokens) == 1
    assert trace_path(resources).stat().st_mode & 0o777 == 0o600
    assert resources.damage() is None
    resources.close()
    assert not trace_path(resources).exists()
    without = Resources(replace(config, trace=None))
    assert "trace" not in without.memories
    assert not trace_path(without).exists()
    without.close()


def test_gone_on_with(config: Config) -> None:
    left = leave(config)
    record(left.memories["trace"], "trace")["rec_tail"] += 7
    resources = Resources(config)
    assert resources.taken_over
    assert TraceView(resources.memories["trace"]).waiting == 7
    resources.close()


def test_another_ring(config: Config) -> None:
    left = leave(config)
    with pytest.raises(WheelError, match=r"--trace-ring 64 .*this start: 128.*--fresh"):
        Resources(replace(config, trace_ring=128))
    assert trace_path(left).exists()


def test_not_wanted_any_more(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    left = leave(config)
    record(left.memories["trace"], "trace")["rec_tail"] += 7
    resources = Resources(replace(config, trace=None))
    assert resources.taken_over
    assert not trace_path(resources).exists()
    assert "7 events that the last daemon traced are not recorded" in caplog.text
    resources.close()


def test_wanted_and_missing(config: Config) -> None:
    first = leave(config)
    before = TraceView(first.memories["trace"]).head
    leave(replace(config, trace=None))
    resources = Resources(config)
    assert resources.taken_over
    assert TraceView(resources.memories["trace"]).head > before + 64
    resources.close()


def set_field(struct: str, field: str, value: int) -> Callable[[mmap.mmap], None]:
    def damage(memory: mmap.mmap) -> None:
        record(memory, struct)[field] = value

    return damage


DAMAGE = {
    "not ready": (set_field("head", "magic", 0), "not ready"),
    "another version": (set_field("head", "layout_version", 1), "layout version 1"),
    "another daemon's": (set_field("head", "token", 1), "to another daemon"),
    "another capacity": (set_field("trace", "capacity", 64), "bytes, expected"),
    "ring that lies": (set_field("trace", "ring_bits", 7), "bytes, expected"),
    "impossible ring": (set_field("trace", "ring_bits", 99), "impossible sizes"),
    "offset that lies": (set_field("trace", "records_off", 64), "records_off 64, expected"),
    "head before tail": (set_field("trace", "rec_head", 0), "expected 0 to 64 between them"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged(config: Config, caplog: pytest.LogCaptureFixture, case: str) -> None:
    damage, why = DAMAGE[case]
    left = leave(config)
    damage(left.memories["trace"])
    texts = DaemonMemory(left.directory).headers()
    assert len(texts) == 1
    assert f"{left.segment_prefix}trace" in texts[0]
    if case not in ("not ready", "another version", "another daemon's"):
        assert why in texts[0]
    resources = Resources(config)
    assert resources.taken_over
    assert why in caplog.text
    assert TraceView(resources.memories["trace"]).waiting == 0
    resources.close()


def test_fsck_of_a_sound_one(config: Config) -> None:
    for size in (16, 64, 1024):
        left = leave(replace(config, trace_ring=size))
        assert DaemonMemory(left.directory).headers() == []
        memory = left.memories["trace"]
        header = record(memory, "trace")
        header["rec_head"], header["rec_tail"] = 2**64 - 3, size - 3
        assert segment.faults(memory) == []
        header["rec_tail"] += 1
        assert len(segment.faults(memory)) == 1
        Resources(replace(config, trace=None)).close()


def test_room(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(replace(config, trace=None))
    big = replace(config, trace_ring=MAX_RING)
    monkeypatch.setattr(segments, "reserve", _full)
    with pytest.raises(WheelError, match=r"no room for .*trace"):
        Resources(big)
    monkeypatch.undo()
    resources = Resources(replace(config, trace=None))
    assert resources.taken_over
    resources.close()


def _full(fd: int, name: str, offset: int, size: int, *_: object) -> None:
    raise segments.SegmentError(f"no room for {name}")


# -- doctor ----------------------------------------------------------------------------------------

WELL = {
    "directory": "/t", "ring": 100, "recorded": 1000, "lost": 0, "behind": 3, "recorder_pid": 7,
    "restarts": 0, "last_file": None, "trouble": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "statuses", "words"),
    [
        ({}, ("ok", "ok"), "1,000 events, none missing"),
        ({"restarts": 2}, ("note", "ok"), "replaced 2 times"),
        ({"recorder_pid": None}, ("failure", "ok"), "none; 0 ended"),
        ({"trouble": "/t: full"}, ("failure", "ok"), "cannot write: /t: full"),
        ({"lost": 5}, ("ok", "warning"), "5 events are missing"),
        ({"behind": 51}, ("ok", "warning"), "51 of 100 wait"),
    ],
)
def test_doctor(changed: dict[str, Any], statuses: tuple[str, ...], words: str) -> None:
    found = [check(WELL | changed) for check in doctor_trace.CHECKS]
    assert tuple(finding.status for finding in found) == statuses
    assert words in " ".join(finding.found for finding in found)


def test_left_segments(config: Config) -> None:
    left = leave(config)
    group = next(
        group for group in groups(Path("/dev/shm"), 0) if group.prefix == left.segment_prefix
    )
    assert "trace" in group.kinds
