"""The files of a trace: what is in which one, what they look like to readers, which are removed."""

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from recorder_records import BOOT, HOUR, NOON, ORIGIN, RUN, cookies, facts, read, records
from wheeld.recorder import parquet
from wheeld.recorder.facts import Facts
from wheeld.recorder.parquet import convert_counters, convert_records
from wheeld.recorder.retention import files, retain
from wheeld.recorder.spool import COUNTERS, FACTS, RECORDS, SpoolName
from wheeld_pipeline import COUNTER_COLUMNS, EVENT_COLUMNS

DAY = 24 * 3600 * 10**9


def spool(trace: Path, made: np.ndarray[Any, Any], position: int = 0) -> Path:
    folder = trace / "_spool"
    folder.mkdir(exist_ok=True)
    path = folder / str(SpoolName(RUN, position, RECORDS))
    path.write_bytes(made.tobytes())
    path.with_suffix(FACTS).write_bytes(b"".join(facts().lines()))
    return path


def convert(trace: Path, made: np.ndarray[Any, Any], position: int = 0) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []

    def written(path: Path, count: int) -> None:
        found.append((str(path.relative_to(trace)), count))

    def warn(text: str) -> None:
        pytest.fail(text)

    convert_records(spool(trace, made, position), trace, written, warn)
    return found


def counter_row(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: 0 for column in COUNTER_COLUMNS}
    row |= {"time": NOON // 1000, **asdict(ORIGIN), "last": False, "pools": [], "full_rings": []}
    return row | values


def test_two_recorders_convert_one_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one names its file just when the second one has begun its own."""
    path = spool(tmp_path, records(100))
    begin, waiting, whole = parquet._writer, list[tuple[Path, Path]](), list[int]()

    def writer(file: Any, schema: Any) -> Any:
        if waiting:  # the second one, whose file is still empty
            os.rename(*waiting[0])
            whole.append(pq.read_table(waiting[0][1]).num_rows)
        return begin(file, schema)

    def rename(fresh: Path, to: Path) -> None:
        if not waiting:
            waiting.append((fresh, to))
            convert_records(path, tmp_path, lambda *_: None, pytest.fail)
        elif fresh.exists():
            os.rename(fresh, to)

    monkeypatch.setattr(parquet, "_writer", writer)
    monkeypatch.setattr(parquet.durable, "rename", rename)
    convert_records(path, tmp_path, lambda *_: None, pytest.fail)
    assert whole == [100]
    assert len(read(tmp_path)) == 100


# -- what they look like ---------------------------------------------------------------------------

PHYSICAL = {
    "timestamp": "INT64", "string": "BYTE_ARRAY", "bigint": "INT64", "int": "INT32",
    "boolean": "BOOLEAN",
}  # fmt: skip


def test_a_file(tmp_path: Path) -> None:
    made = records(1000)
    made["kind"] = np.arange(1000) % 6 + 1
    assert convert(tmp_path, made) == [
        (f"events/date=2026-11-21/hour=12/{RUN}-{0:016x}.parquet", 1000)
    ]
    file = pq.ParquetFile(next(tmp_path.rglob("*.parquet")))
    assert file.metadata.num_row_groups == 1
    assert [column.name for column in EVENT_COLUMNS] == file.schema.names
    for i, column in enumerate(EVENT_COLUMNS):
        declared, group = file.schema.column(i), file.metadata.row_group(0).column(i)
        assert declared.physical_type == PHYSICAL[column.type], column.name
        assert declared.max_definition_level == column.nullable, column.name
        assert group.compression == "ZSTD"
        assert group.is_stats_set
        if column.type == "timestamp":
            logical = str(declared.logical_type)
            assert "isAdjustedToUTC=true, timeUnit=microseconds" in logical
    assert file.schema_arrow.field("worker").type == pa.string(), "as text, not as a dictionary"


def test_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 100)
    found = convert(tmp_path, records(250), position=1000)
    assert [(Path(name).stem, count) for name, count in found] == [
        (f"{RUN}-{at:016x}", count) for at, count in ((1000, 100), (1100, 100), (1200, 50))
    ]
    assert parquet.GROUP_ROWS == 100
    assert cookies(tmp_path) == list(range(250))


def test_again_and_with_more(tmp_path: Path) -> None:
    made = records(30)
    assert convert(tmp_path, made[:20]) == convert(tmp_path, made[:20])
    assert convert(tmp_path, made)[0][1] == 30
    assert cookies(tmp_path) == list(range(30))
    assert [path.name for path in (tmp_path / "_spool").iterdir() if path.suffix == ".new"] == []


@pytest.mark.parametrize("name", ["numpy", "pandas", "dataset"])
def test_other_readers(tmp_path: Path, name: str) -> None:
    convert(tmp_path, records(10))
    table = pyarrow.dataset.dataset(tmp_path / "events", partitioning="hive").to_table()
    assert set(table.column_names) == {c.name for c in EVENT_COLUMNS} | {"date", "hour"}
    if name == "pandas":
        pytest.importorskip("pandas")  # of the extras that read, not of the one that writes
        frame = table.to_pandas()
        assert str(frame["time"].dtype) == "datetime64[us, UTC]"
        assert frame["worker"].tolist() == ["w0"] * 10
    elif name == "numpy":
        assert table["cookie"].to_numpy().tolist() == list(range(10))


def test_appears_by_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        steps.append("file" if path.endswith(".new") else Path(path).name)
        fsync(fd)

    def renamed(old: Path, new: Path) -> None:
        assert old.parent == tmp_path / "_spool"
        assert list(tmp_path.rglob("*.parquet")) == []
        steps.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    convert_records(spool(tmp_path, records(5)), tmp_path, lambda *_: steps.append("told"), _warn)
    assert steps[-4:] == ["file", "rename", "hour=12", "told"]
    assert steps[:-4] == [tmp_path.name, "events", "date=2026-11-21"]


def _warn(text: str) -> None:
    pytest.fail(text)


# -- hours -----------------------------------------------------------------------------------------


def test_hour_borders(tmp_path: Path) -> None:
    edge = NOON + HOUR
    times = [edge - 1000, edge - 1, edge, edge + 1, edge - 2 * HOUR, edge + 11 * HOUR]
    made = records(6, time_ns=np.array(times) - BOOT)
    assert sorted(convert(tmp_path, made)) == [
        (f"events/{folder}/{RUN}-{0:016x}.parquet", count)
        for folder, count in (
            ("date=2026-11-21/hour=11", 1),
            ("date=2026-11-21/hour=12", 2),
            ("date=2026-11-21/hour=13", 2),
            ("date=2026-11-22/hour=00", 1),
        )
    ]
    for path in tmp_path.rglob("*.parquet"):
        for row in pq.ParquetFile(path).read().to_pylist():
            assert path.parent.name == f"hour={row['time']:%H}"
            assert path.parent.parent.name == f"date={row['time']:%Y-%m-%d}"
    assert cookies(tmp_path) == list(range(6))


def test_hours_of_virtual_clocks(tmp_path: Path) -> None:
    made = records(4, time_ns=[0, -1, -(2**63), 2**63 - 1], scheduled_ns=0)
    path = spool(tmp_path, made)
    path.with_suffix(FACTS).write_bytes(b"".join(Facts(ORIGIN).lines()))
    found: list[Path] = []
    convert_records(path, tmp_path, lambda path, _: found.append(path.parent), pytest.fail)
    assert [str(folder.relative_to(tmp_path / "events")) for folder in found] == [
        "date=1677-09-21/hour=00", "date=1969-12-31/hour=23", "date=1970-01-01/hour=00",
        "date=2262-04-11/hour=23",
    ]  # fmt: skip


# -- counters --------------------------------------------------------------------------------------


def test_counters(tmp_path: Path) -> None:
    pools = [{"name": "requests", "size": 64 << 20, "used": -5, "depleted_ns": 2**63 - 1}]
    rows = [counter_row(fired=1), counter_row(fired=2, pools=pools, last=True)]
    rows[1]["time"] += 3600 * 10**6
    path = tmp_path / "_spool" / str(SpoolName(RUN, 77, COUNTERS))
    path.parent.mkdir()
    import json

    lines = [next(facts().lines()), *(json.dumps(row).encode() + b"\n" for row in rows)]
    path.write_bytes(b"".join(lines) + b'{"time": 5')
    found: list[Path] = []
    convert_counters(path, tmp_path, lambda path, _: found.append(path))
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        f"counters/date=2026-11-21/hour={hour}/{RUN}-{77:016x}.parquet" for hour in (12, 13)
    ]
    first, second = read(tmp_path, "counters")
    assert first == rows[0] | {"time": datetime(2026, 11, 21, 12, tzinfo=UTC)}
    assert (second["pools"], second["last"], second["fired"]) == (pools, True, 2)
    schema = pq.ParquetFile(found[0]).schema_arrow
    assert [field.name for field in schema] == [column.name for column in COUNTER_COLUMNS]
    assert not any(field.nullable for field in schema)


def test_no_counters(tmp_path: Path) -> None:
    path = tmp_path / str(SpoolName(RUN, 1, COUNTERS))
    path.write_bytes(next(facts().lines()))
    convert_counters(path, tmp_path, lambda *_: pytest.fail("a file"))
    assert list(tmp_path.iterdir()) == [path]


# -- retention -------------------------------------------------------------------------------------

NOW = NOON + 10 * DAY


def make(
    trace: Path, age_days: int, number: int, size: int = 1000, dataset: str = "events"
) -> Path:
    folder = trace / dataset / f"date=2026-11-{number:02d}" / "hour=07"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{RUN}-{number:016x}.parquet"
    path.write_bytes(b"x" * size)
    os.utime(path, ns=(0, NOW - age_days * DAY))
    return path


def numbers(trace: Path, dataset: str = "events") -> list[int]:
    return sorted(int(file.path.stem[-16:], 16) for file in files(trace)
                  if file.path.is_relative_to(trace / dataset))  # fmt: skip


@pytest.mark.parametrize(
    ("keep", "most", "events", "counters"),
    [
        (None, None, [1, 2, 3, 4, 5, 6, 7], [1, 2]),
        (5 * DAY, None, [5, 6, 7], [2]),
        (None, 8000, [1, 2, 3, 4, 5, 6, 7], [1, 2]),
        (None, 3500, [5, 6, 7], [2]),
        (8 * DAY, 3500, [5, 6, 7], [2]),
        (4 * DAY, 3500, [6, 7], [2]),
        (DAY, 1, [7], [2]),
    ],
)
def test_what_is_kept(
    tmp_path: Path, keep: int | None, most: int | None, events: list[int], counters: list[int]
) -> None:
    for number in range(1, 8):
        make(tmp_path, 10 - number, number)
    make(tmp_path, 9, 1, 500, "counters")
    make(tmp_path, 1, 2, 500, "counters")
    for _ in range(2):
        removed = retain(tmp_path, keep, most, NOW)
        assert not any(path.exists() for path in removed)
        assert (numbers(tmp_path), numbers(tmp_path, "counters")) == (events, counters)
    dates = sorted(path.name[-2:] for path in (tmp_path / "events").iterdir())
    assert dates == [f"{number:02d}" for number in events]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    elsewhere = make(outside, 100, 1)
    trace = tmp_path / "trace"
    ours = [make(trace, 100, number) for number in (1, 2, 3)]
    folder = ours[0].parent
    strangers = [
        folder / "mine.parquet",
        folder / f"{RUN}-1.parquet",
        folder / f"{ours[0].name}.bak",
        trace / "events" / ours[0].name,
        trace / ours[0].name,
        trace / "events" / "hour=07" / ours[0].name,
        trace / "reports" / "date=2026-11-01" / "hour=07" / ours[0].name,
        trace / "_spool" / ours[0].name,
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10**6)
        os.utime(path, ns=(0, 0))
    (folder / f"{RUN}-{9:016x}.parquet").symlink_to(elsewhere)
    (trace / "events" / "date=2026-11-09").symlink_to(outside / "events" / "date=2026-11-01")
    retain(trace, DAY, 1, NOW)
    assert [path for path in (*strangers, elsewhere) if not path.exists()] == []
    assert [path.exists() for path in ours] == [False, False, True]


def test_nothing_to_retain(tmp_path: Path) -> None:
    assert retain(tmp_path / "nowhere", DAY, 1, NOW) == []
