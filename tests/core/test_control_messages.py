"""Messages that C writes are those that Python declares; an unknown request names all of them."""

from pathlib import Path

import pytest

from wheeld.processes.messages import Notice
from wheeld_core import control
from wheeld_core.control.messages import Request

CORE = Path(__file__).parents[2] / "core"


@pytest.mark.parametrize(
    ("file", "op"),
    [
        ("include/wheeld/worker/client.h", Request.ALARM),
        ("wheeld_core/native/clock/clock_part.c", Notice.AWAKE),
    ],
)
def test_messages_of_c(file: str, op: str) -> None:
    line = control.encode({"op": op}).decode().replace('"', '\\"').replace("\n", "\\n")
    assert f'[] = "{line}";' in (CORE / file).read_text()


def test_a_name_stands_for_its_text() -> None:
    said = control.decode(control.encode({"op": Request.STATUS}))
    assert said == {"op": "status"} == {"op": Request.STATUS}
    assert f"{Request.STOP}" == "stop"
