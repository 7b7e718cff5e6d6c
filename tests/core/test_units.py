"""Durations and sizes: what is written is read as the same number, and nonsense is refused."""

import pytest
from hypothesis import given, strategies as st

from wheeld_core import units


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1ns", 1), ("1.5 us", 1500), (".25ms", 250_000), ("2h", 7200 * 10**9),
     (" 7d ", 604_800 * 10**9), ("4.35us", 4350), ("1m", 60 * 10**9),
     ("5", 5 * 10**9), (".5", 500_000_000)],
)  # fmt: skip
def test_durations(text: str, ns: int) -> None:
    assert units.parse_duration(text) == ns


@pytest.mark.parametrize(
    "text", ["", "ms", "nan", "inf", "-1s", "1 hour", "1e3s", "1.s", "9" * 400 + "s"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="such as 250ms"):
        units.parse_duration(text)


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5M", "1KiP", "1 P"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="such as 1048576, 64K"):
        units.parse_bytes(text)


@given(st.integers(1, 2**62))
def test_texts_are_read_back(number: int) -> None:
    assert units.parse_bytes(units.bytes_text(number)) == number
    assert units.parse_duration(units.duration_text(number % 2**50 + 1)) == number % 2**50 + 1


def test_for_people() -> None:
    assert units.mebibytes(3 << 30) == "3,072.0 MiB"
    assert [units.readable_bytes(size) for size in (512, 1536, 5 << 30)] == [
        "512 bytes",
        "1.5 KiB",
        "5.0 GiB",
    ]
