"""Options of connect: checked before anything is sent, and what was expected is said."""

from typing import Any

import pytest

from wheeld_client import AsyncTimers, connect

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"worker": b"w"}, TypeError, "worker=b'w'"),
    ({"worker": 5}, TypeError, "worker=5"),
    ({"on_death": None}, ValueError, "on_death=None"),
    ({"on_death": b"drop"}, ValueError, "on_death=b'drop'"),
    ({"on_death": ["drop"]}, ValueError, "on_death"),
    ({"group": b"g"}, ValueError, "b'g'"),
    ({"group": 3}, ValueError, "3"),
    ({"after_fork": 1}, ValueError, "after_fork=1"),
    ({"reconnect_for": "1"}, TypeError, "reconnect_for='1'"),
    ({"reconnect_for": None}, TypeError, "reconnect_for=None"),
    ({"reconnect_for": -1}, ValueError, "reconnect_for=-1"),
    ({"reconnect_for": float("nan")}, ValueError, "reconnect_for=nan"),
    ({"timeout": "1"}, TypeError, "timeout='1'"),
    ({"timeout": None}, TypeError, "timeout=None"),
    ({"timeout": -1.0}, ValueError, "timeout=-1.0"),
    ({"timeout": 0}, ValueError, "timeout=0"),
    ({"timeout": float("nan")}, ValueError, "timeout=nan"),
    ({"timeout": float("inf")}, ValueError, "timeout=inf"),
    ({"name": b"default"}, TypeError, "name: got bytes"),
    ({"name": 5}, TypeError, "name: got int"),
    ({"runtime_dir": 5}, TypeError, "runtime_dir: got int"),
]


@pytest.mark.parametrize(("options", "error", "words"), WRONG, ids=str)
def test_wrong_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        connect(**options)
    assert words in str(caught.value)
    if not options.keys() & {"name", "runtime_dir"}:  # which are looked at when it is entered
        with pytest.raises(error):
            AsyncTimers(**options)
