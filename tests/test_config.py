"""Configuration: each wrong value is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wheeld.config import ConfigError, load
from wheeld_core import _native

LONG = 60.0


# -- configuration ------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tick": "1 hour"}, ("tick", "'1 hour'", "'1ms'")),
        ({"tick": "0ms"}, ("tick", "1ns")),
        ({"tick": "0.5ns"}, ("tick", "1ns")),
        ({"tick": "9999s"}, ("tick", "3600s")),
        ({"capacity": 0}, ("capacity = 0", "1 to")),
        ({"capacity": 2**31}, ("capacity", str(_native.MAX_CAPACITY))),
        ({"max_workers": 5000}, ("max_workers", str(_native.MAX_WORKERS))),
        ({"wheel_size": 1}, ("wheel_size", "2 to 4096")),
        ({"wheel_size": 10**5}, ("wheel_size", "2 to 4096")),
        ({"payload_bytes": -1}, ("payload_bytes", "0 to 65528")),
        ({"virtual_start": -1}, ("virtual_start", "0 to")),
        ({"pin_cpu": 4096}, ("pin_cpu", "expected one of")),
        ({"name": "a/b"}, ("'a/b'", "letters, digits")),
        ({"nonsense": 1}, ("nonsense", "allowed", "capacity")),
        ({"capacity": "many"}, ("capacity", "'many'", "int")),
        ({"capacity": 1.5}, ("capacity", "1.5", "int")),
        ({"virtual_clock": "perhaps"}, ("virtual_clock", "'perhaps'", "bool")),
    ],
)
def test_bad_configuration(values: dict[str, object], words: tuple[str, ...]) -> None:
    """ConfigError names the key, the value and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load(values)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"capacity = ", ("not valid TOML",)),
        (b"\xff\xfe", ("not valid TOML",)),
        (b"capacty = 5", ("capacty", "capacity", "allowed")),
        (b"capacity = true", ("capacity", "True", "int")),
        (b"capacity = [1]", ("capacity", "[1]", "int")),
        (b"[wheel]\ncapacity = 1", ("wheel", "allowed")),
        (b"tick = 5", ("tick", "5", "str")),
        (None, ("no such file",)),
    ],
)
def test_bad_file(tmp_path: Path, text: bytes | None, words: tuple[str, ...]) -> None:
    """Of a file the message also names the file; the command ends with 1 and one line."""
    path = tmp_path / "wheel.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load({}, path)
    for word in (str(path), *words):
        assert word in str(caught.value)
    command = [sys.executable, "-m", "wheeld", "start", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"wheeld: {caught.value}\n"


def test_sources_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line before environment before file before default."""
    path = tmp_path / "wheel.toml"
    path.write_text("capacity = 64\nmax_workers = 2\ntick = '2ms'")
    monkeypatch.setenv("WHEELD_CAPACITY", "1_28")
    monkeypatch.setenv("WHEELD_MAX_WORKERS", "3")
    found = load({"capacity": 192, "tick": None}, path)
    assert (found.capacity, found.max_workers, found.tick_ns, found.wheel_size) == (
        192,
        3,
        2 * 10**6,
        64,
    )
    assert np.log2(found.wheel_size) == found.wheel_bits
