"""From records to columns: every value exact, also at the ends of its range."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recorder_records import BOOT, NOON, OFFSETS, ORIGIN, facts, records
from wheeld.recorder.columns import COUNTER_SCHEMA, EVENT_SCHEMA, event_table
from wheeld.recorder.facts import Facts, Names, Offsets
from wheeld_core.views.trace import NO_ROW, TRACE_FOUND, TRACE_KINDS, TRACE_LOST, TRACE_PERIODIC
from wheeld_pipeline import COUNTER_COLUMNS, EVENT_COLUMNS, EVENTS

FOREVER = 2**63 - 1
REALTIME, BOOTTIME = 1, 2
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(unix_ns: int) -> datetime:
    return EPOCH + timedelta(microseconds=unix_ns // 1000)


def rows(
    made: np.ndarray[Any, Any], names: Names | None = None, offsets: Offsets = OFFSETS
) -> list[dict[str, Any]]:
    positions = np.arange(100, 100 + len(made), dtype=np.uint64)
    table = event_table(made, positions, ORIGIN, names or facts().names, offsets)
    table.validate(full=True)
    assert table.schema == EVENT_SCHEMA
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@pytest.mark.parametrize(
    ("schema", "columns"), [(EVENT_SCHEMA, EVENT_COLUMNS), (COUNTER_SCHEMA, COUNTER_COLUMNS)]
)
def test_columns_are_the_contract(schema: pa.Schema, columns: tuple[Any, ...]) -> None:
    spark = {
        "timestamp[us, tz=UTC]": "timestamp",
        "string": "string",
        "dictionary<values=string, indices=int32, ordered=0>": "string",
        "int64": "bigint",
        "int32": "int",
        "bool": "boolean",
        "list<item: string>": "array<string>",
    }
    assert [field.name for field in schema] == [column.name for column in columns]
    for field, column in zip(schema, columns, strict=True):
        assert field.nullable == column.nullable, field.name
        if column.name == "pools":
            inner = field.type.value_type
            texts = ",".join(f"{part.name}:{spark[str(part.type)]}" for part in inner)
            assert f"array<struct<{texts}>>" == column.type
        else:
            assert spark[str(field.type)] == column.type, field.name


def test_kinds_are_the_clocks() -> None:
    assert list(EVENTS) == [*TRACE_KINDS.values(), "lost"]
    assert [*TRACE_KINDS, TRACE_LOST] == list(range(1, 7))


def test_one_event_of_each_kind() -> None:
    made = records(5, kind=[1, 2, 3, 4, 5], count=[1, 7, 1, 1, 1], pending=[1, 1, 0, 3, 4])
    made["payload_size"], made["missed"] = 65528, 9
    made["time_ns"] += 5 * 10**9
    for i, (row, fields) in enumerate(zip(rows(made), made, strict=True)):
        expired = EVENTS[i] == "expired"
        assert row == {
            "time": at(BOOT + int(fields["time_ns"])),
            "event": EVENTS[i],
            "host": "host-1",
            "daemon": "daemon-1",
            "run": "00c0ffee00c0ffee",
            "worker": "w0",
            "receiver": None,
            "timer_id": i,
            "cookie": i,
            "scheduled": at(BOOT + int(fields["scheduled_ns"])),
            "deadline": at(BOOT + int(fields["deadline_ns"])),
            "delay_ns": 10**9,
            "lateness_ns": 4 * 10**9 if expired else None,
            "count": 7 if EVENTS[i] == "rescheduled" else 1,
            "missed": 9 if expired else 0,
            "pending": [1, 1, 0, 3, 4][i],
            "payload_bytes": 65528,
            "periodic": False,
            "found": False,
            "lost_event": None,
        }


def test_lost_rows() -> None:
    made = records(3, kind=[1, TRACE_LOST, TRACE_LOST], count=[1, 5, 2**32 - 1], id=[9, 4, 1])
    made["worker"][1:] = NO_ROW
    made["pending"] = 2**32 - 1
    found = rows(made)
    assert [row["event"] for row in found] == ["scheduled", "lost", "lost"]
    assert [row["lost_event"] for row in found] == [None, "expired", "scheduled"]
    assert [row["count"] for row in found] == [1, 5, 2**32 - 1]
    nothing = ("worker", "receiver", "scheduled", "deadline", "delay_ns", "lateness_ns")
    assert [[row[name] for name in nothing] for row in found[1:]] == [[None] * 6] * 2
    assert [row["timer_id"] for row in found] == [9, 0, 0]
    assert [row["pending"] for row in found] == [2**32 - 1] * 3
    assert found[1]["time"] == at(BOOT + int(made["time_ns"][1]))


@pytest.mark.parametrize("number", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_ids_and_cookies_keep_their_bits(number: int) -> None:
    row = rows(records(1, id=np.uint64(number), cookie=np.uint64(number)))[0]
    assert row["timer_id"] == row["cookie"] == (number if number < 2**63 else number - 2**64)


@pytest.mark.parametrize(
    ("clock", "offset"), [(0, BOOT), (REALTIME, 0), (BOOTTIME, OFFSETS.boottime), (3, BOOT)]
)
def test_expirations_are_on_their_timers_clock(clock: int, offset: int) -> None:
    now, due = NOON - offset, NOON - offset - 1_234_567
    made = records(1, kind=4, flags=clock, time_ns=now, deadline_ns=due, scheduled_ns=900 * 10**9)
    row = rows(made)[0]
    assert row["time"] == at(NOON)
    assert row["deadline"] == at(NOON - 1_234_567)
    assert row["lateness_ns"] == 1_234_567
    assert row["scheduled"] == at(BOOT + 900 * 10**9)
    assert row["delay_ns"] == 100 * 10**9 - 1_234_567


@pytest.mark.parametrize("kind", [1, 2, 3, 5])
def test_other_events_are_on_the_base_clock(kind: int) -> None:
    row = rows(records(1, kind=kind, flags=REALTIME))[0]
    assert (row["time"], row["delay_ns"]) == (at(BOOT + 1000 * 10**9), 10**9)


@pytest.mark.parametrize(
    ("deadline", "shown"),
    [
        (FOREVER, None),
        (FOREVER - BOOT + 1, None),
        (FOREVER - BOOT - 1, at(FOREVER - 1)),
        (0, at(BOOT)),
        (-5, at(BOOT - 5)),
    ],
)
def test_far_deadlines(deadline: int, shown: datetime | None) -> None:
    row = rows(records(1, scheduled_ns=7, deadline_ns=deadline))[0]
    assert row["deadline"] == shown
    assert row["delay_ns"] == max(deadline - 7, 0)


def test_extremes_of_lateness() -> None:
    made = records(2, kind=4, time_ns=[FOREVER, 5], deadline_ns=[-FOREVER, FOREVER])
    assert [row["lateness_ns"] for row in rows(made, offsets=Offsets())] == [FOREVER, 5 - FOREVER]


def test_never_scheduled() -> None:
    row = rows(records(1, kind=5, scheduled_ns=0))[0]
    assert (row["scheduled"], row["delay_ns"]) == (None, None)
    assert row["deadline"] is not None


def test_virtual_time_is_unix_time() -> None:
    made = records(2, time_ns=[0, 1999], scheduled_ns=0, deadline_ns=10**18)
    found = rows(made, offsets=Offsets())
    assert [row["time"] for row in found] == [EPOCH, EPOCH + timedelta(microseconds=1)]
    assert [row["scheduled"] for row in found] == [EPOCH] * 2
    assert found[0]["delay_ns"] == 10**18
    assert found[0]["deadline"] == EPOCH + timedelta(seconds=10**9)


def test_flags() -> None:
    made = records(4, flags=[0, TRACE_PERIODIC, TRACE_FOUND | 2, TRACE_PERIODIC | TRACE_FOUND])
    found = rows(made)
    assert [row["periodic"] for row in found] == [False, True, False, True]
    assert [row["found"] for row in found] == [False, False, True, True]


def test_owners() -> None:
    names = facts(a=(3, 7, 0), b=(3, 8, 0)).names
    made = records(6, worker=[3, 3, 0, 3, 9, 3], incarnation=[7, 8, 1, 7, 2**32 - 1, 9])
    assert [row["worker"] for row in rows(made, names)] == [
        "a", "b", "w0", "a", f"worker-9-{2**32 - 1}", "worker-3-9",
    ]  # fmt: skip
    one_each = records(3, worker=[3, 0, 3], incarnation=[8, 1, 8])
    assert [row["worker"] for row in rows(one_each, names)] == ["b", "w0", "b"]


def test_receivers() -> None:
    names = facts(early=(2, 1, 0), late=(2, 5, 103)).names
    made = records(6, kind=[4, 4, 1, 4, 4, 4], receiver=[NO_ROW, 2, 2, 2, 2, 8])
    found = [row["receiver"] for row in rows(made, names)]
    assert found == [None, "early", None, "late", "late", "worker-8"]


def test_first_name_stays() -> None:
    names = Names()
    assert names.learn(1, 1, "web", 5)
    assert not names.learn(1, 1, "web (left 1)", 9)
    assert (names.owner(1, 1), names.arrivals(1)) == ("web", [(5, "web")])
    names.learn(1, 1, "web", 3)
    assert names.arrivals(1) == [(3, "web")]
    names.learn(2, 2, "x", 9)
    names.forget(1)
    assert (names.owner(1, 1), names.owner(2, 2)) == ("worker-1-1", "x")


def test_no_records() -> None:
    assert rows(records(0)) == []


def test_against_a_loop(rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    count = 3000
    made = records(count, kind=rng.integers(1, 7, count), flags=rng.integers(0, 16, count))
    for name in ("time_ns", "scheduled_ns", "deadline_ns"):
        made[name] = rng.integers(1, 10**17, count)
    for name in ("id", "cookie"):
        made[name] = rng.integers(0, 2**64, count, dtype=np.uint64)
    for name in ("count", "missed", "pending"):
        made[name] = rng.integers(0, 2**32, count)
    made["worker"], made["incarnation"] = rng.integers(0, 3, (2, count))
    lost = made["kind"] == TRACE_LOST
    made["id"][lost] = rng.integers(1, 6, lost.sum())
    by_clock = OFFSETS.of_clocks()
    for row, fields in zip(rows(made), made.tolist(), strict=True):
        value = dict(zip(made.dtype.names, fields, strict=True))
        time, scheduled, deadline = (
            value[f"{name}_ns"] for name in ("time", "scheduled", "deadline")
        )
        kind, flags = EVENTS[value["kind"] - 1], value["flags"]
        worker, incarnation = value["worker"], value["incarnation"]
        offset = by_clock[flags & 3] if kind == "expired" else BOOT
        gone = kind == "lost"
        name = "w0" if (worker, incarnation) == (0, 1) else f"worker-{worker}-{incarnation}"
        assert row["time"] == at(time + offset)
        assert row["worker"] == (None if gone else name)
        assert row["deadline"] == (None if gone else at(deadline + offset))
        delay = max(deadline + offset - scheduled - BOOT, 0)
        assert row["delay_ns"] == (None if gone else delay)
        assert row["lateness_ns"] == (time - deadline if kind == "expired" else None)
        assert row["count"] == (value["count"] if kind in ("rescheduled", "lost") else 1)
        assert row["missed"] == (value["missed"] if kind == "expired" else 0)
        assert row["pending"] == value["pending"]
        assert row["timer_id"] % 2**64 == (0 if gone else value["id"])
        assert row["cookie"] % 2**64 == (0 if gone else value["cookie"])


def test_pieces_by_offsets() -> None:
    a, b, c = Offsets(1, 1), Offsets(2, 2), Offsets(3, 3)
    found = Facts(ORIGIN, "s", offsets=[(10, a), (20, b), (30, c)])
    assert found.pieces(10, 30) == [(10, 10, a), (20, 10, b), (30, 10, c)]
    assert found.pieces(20, 5) == [(20, 5, b)]
    assert found.pieces(29, 2) == [(29, 1, b), (30, 1, c)]
    assert found.pieces(5, 10) == [(5, 5, a), (10, 5, a)]
    assert Facts(ORIGIN, "s").pieces(5, 1) == [(5, 1, Offsets())]


@pytest.mark.parametrize("columns", [EVENT_COLUMNS, COUNTER_COLUMNS])
def test_the_page_has_the_columns(columns: tuple[Any, ...]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
    table = "\n".join(f"| `{c.name}` | {c.type} | {c.meaning} |" for c in columns)
    assert f"| --- | --- | --- |\n{table}\n\n" in page
