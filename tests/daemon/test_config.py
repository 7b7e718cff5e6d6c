"""Configuration: each wrong value is refused by name."""

import grp
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wheeld
from wheeld.config import addresses
from wheeld.config.pools import Pool
from wheeld.config.settings import OPTIONS, Config, ConfigError, load
from wheeld.embedding import _options
from wheeld.processes import identity
from wheeld_core import _native
from wheeld_core.errors import WheelError

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
        ({"max_per_worker": 0}, ("max_per_worker = 0", "from 1 on")),
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
        ({"pools": ["requests"]}, ("'requests'", "expected NAME=BYTES", "requests=64M")),
        ({"pools": ["=64M"]}, ("'=64M'", "name ''", "letters, digits")),
        ({"pools": ["a b=1"]}, ("'a b=1'", "name 'a b'", "letters, digits")),
        ({"pools": [".a=1"]}, ("name '.a'", "beginning with")),
        ({"pools": ["ä=1"]}, ("name 'ä'", "letters, digits")),
        ({"pools": ["n" * 64 + "=1"]}, ("up to 63",)),
        ({"pools": ["a=1M", "b=1", "a=1M"]}, ("'a'", "2 times", "expected once")),
        ({"pools": ["a=0"]}, ("'a=0'", "size '0'", "1 to 128G")),
        ({"pools": ["a=129G"]}, ("size '129G'", "1 to 128G")),
        ({"pools": [f"a={2**37 + 1}"]}, ("1 to 128G",)),
        ({"pools": ["a="]}, ("size ''", "64K, 64M or 2G")),
        ({"pools": ["a=many"]}, ("size 'many'", "1048576")),
        ({"pools": ["a=-1"]}, ("size '-1'", "1048576")),
        ({"pools": ["a=1.5M"]}, ("size '1.5M'", "64M")),
        ({"pools": ["a=1T"]}, ("size '1T'", "64M")),
        ({"pools": ["a=1M,largest=2M"]}, ("largest '2M'", "1 to 1M", "the pool's size")),
        ({"pools": ["a=1M,largest=0"]}, ("largest '0'", "1 to 1M")),
        ({"pools": ["a=1M,largest"]}, ("largest ''", "64K")),
        ({"pools": ["a=1M,lenient"]}, ("unknown 'lenient'", "'strict'", "largest=BYTES")),
        ({"pools": ["a=1M,"]}, ("unknown ''", "'strict'")),
        ({"pools": [f"p{i}=1" for i in range(17)]}, ("17 pools", "at most 16")),
        ({"pools": [5]}, ("pools = [5]", "list of strings")),
        ({"pools": 5}, ("pools = 5", "list of strings")),
    ],
)
def test_bad_configuration(values: dict[str, object], words: tuple[str, ...]) -> None:
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
        (b"pools = 5", ("pools = 5", "list of strings")),
        (b"pools = [1]", ("pools = [1]", "list of strings")),
        (None, ("no such file",)),
    ],
)
def test_bad_file(tmp_path: Path, text: bytes | None, words: tuple[str, ...]) -> None:
    path = tmp_path / "wheel.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load({}, path)
    for word in (str(path), *words):
        assert word in str(caught.value)
    command = [sys.executable, "-m", "wheeld", "start", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"wheeld: {caught.value}\n"


def test_sources_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("variable", "given", "place"),
    [
        ("64", 0, "option --capacity: capacity = 0: expected an integer from 1 to"),
        ("0", None, "variable WHEELD_CAPACITY: capacity = 0: expected an integer"),
        (None, None, "wheel.toml, line 3: capacity = 0: expected an integer from 1 to"),
    ],
)
def test_errors_name_the_source(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    given: int | None,
    place: str,
) -> None:
    path = tmp_path / "wheel.toml"
    path.write_text("# capacity\nmax_workers = 2\n capacity = 0\n")
    if variable is not None:
        monkeypatch.setenv("WHEELD_CAPACITY", variable)
    with pytest.raises(ConfigError) as caught:
        load({"capacity": given}, path)
    assert place in str(caught.value)


def test_a_misspelt_key(tmp_path: Path) -> None:
    path = tmp_path / "wheel.toml"
    path.write_text("tick = '1ms'\nmax_worker = 2\n")
    with pytest.raises(ConfigError, match=r"line 2: unknown key 'max_worker', did you mean"):
        load({}, path)


@pytest.mark.parametrize("key", OPTIONS)
def test_each_option_has_its_variable(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    special = {"name": "x", "runtime_dir": "/x", "group": grp.getgrgid(0).gr_name, "pin_cpu": None}
    option = OPTIONS[key]
    value = special.get(key, option.example or option.default)
    value = max(os.sched_getaffinity(0)) if key == "pin_cpu" else value
    if key == "admin_group":
        value = special["group"]
        monkeypatch.setenv("WHEELD_GROUP", value)
    if key in ("web_token", "web_admin"):
        monkeypatch.setenv("WHEELD_WEB", addresses.WEB)
    monkeypatch.setenv(option.variable, ";".join(value) if key == "pools" else str(value))
    assert getattr(load({}), key) == value
    if value != option.default:
        assert getattr(Config(), key) != value


def test_documents_of_options() -> None:
    command = [sys.executable, "-m", "tools.option_tables", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# -- pools --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pool"),
    [
        ("requests=64M,strict", Pool("requests", 64 << 20, 64 << 20, True)),
        ("a=1", Pool("a", 1, 1, False)),
        ("a=1023", Pool("a", 1023, 1023, False)),
        ("a=64k", Pool("a", 65536, 65536, False)),
        ("0.-_=128G,largest=2G", Pool("0.-_", 2**37, 2**31, False)),
        ("a=2M,largest=1K,strict", Pool("a", 2 << 20, 1024, True)),
        ("n" * 63 + "=5", Pool("n" * 63, 5, 5, False)),
    ],
)
def test_a_pool(text: str, pool: Pool) -> None:
    assert load({"pools": [text]}).memory_pools == [pool]
    assert load({"pools": [pool.text()]}).memory_pools == [pool]


def test_sources_of_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in the file, semicolons in the environment, repeated options; the last covers the
    others as a whole. 16 of them are allowed."""
    path = tmp_path / "wheel.toml"
    path.write_text('pools = ["requests=64M,strict", "b=1K"]')
    assert load({}).pools == ()
    assert [pool.name for pool in load({}, path).memory_pools] == ["requests", "b"]
    monkeypatch.setenv("WHEELD_POOLS", "c=1M; d=2M,strict;")
    assert load({}, path).pools == ("c=1M", "d=2M,strict")
    assert load({"pools": ["e=1"]}, path).pools == ("e=1",)
    monkeypatch.setenv("WHEELD_POOLS", "")
    assert load({}, path).pools == ()
    assert len(load({"pools": [f"p{i}=1" for i in range(16)]}).memory_pools) == 16


def test_embedded_options() -> None:
    given = {"pools": ["a=1", "b=2,strict"], "capacity": 64, "virtual_clock": True, "group": None}
    options = json.loads(_options("x", "/y", given))
    assert options.pop("parent_pid") == os.getpid()
    assert options.pop("parent_known") == identity.of_pid(os.getpid())
    found = load(options)
    assert (found.name, found.runtime_dir, found.capacity) == ("x", "/y", 64)
    assert (found.pools, found.virtual_clock) == (("a=1", "b=2,strict"), True)
    assert found.group is None


def test_an_embedded_daemon_with_a_wrong_option() -> None:
    with pytest.raises(WheelError, match="unknown key 'capacities'"), wheeld.embedded(capacities=1):
        pass
    with pytest.raises(WheelError, match="capacity = 0"), wheeld.embedded(capacity=0):
        pass
