"""A part counts the same whether its rows come at once or in many pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from traces import EVENT_SCHEMA, START_US, Story, as_table, lost

from wheeld_pipeline.report.counts import cube, tried_wheels, wheels
from wheeld_pipeline.trace_files import connection


@pytest.fixture
def table(rng_seed: int) -> pa.Table:
    rng = np.random.default_rng(rng_seed)
    stories = [Story(rng, 100, 60, run=f"{number:016x}").rows for number in (1, 2)]
    mixed = sorted((row for own in stories for row in own), key=lambda row: int(row["time"]))
    end = mixed[-1]  # as a pass writes it: many rows of one time
    mixed += [end | {"pending": pending} for pending in (9, 8, 7)]
    mixed.append(lost(START_US, "expired", 7, run=f"{1:016x}"))
    made = as_table(mixed, EVENT_SCHEMA).append_column("filename", [["f"] * len(mixed)])
    return made.append_column("file_row_number", [range(len(mixed))])


def counted(table: pa.Table, size: int) -> tuple[dict[str, Any], set[tuple[Any, ...]]]:
    tried = wheels.candidates()
    with connection(1) as base:
        parts = []
        for begin in range(0, len(table), size):
            base.register("events", table.slice(begin, size))
            parts.append(cube.count(base, 1, tried))
    lines = pa.concat_tables(parts)
    met = lines.filter(pc.equal(lines["what"], cube.MET))
    blocks = {number.as_py() for number in pc.unique(met["block"])}
    tried_out = {
        (run, *row.values())
        for run in pc.unique(met["run"]).to_pylist()
        for block in blocks
        for own in [met.filter((pc.field("run") == run) & (pc.field("block") == block))]
        if len(own)
        for row in tried_wheels.try_block(own, tried).to_pylist()
    }
    return cube.tables(lines), tried_out


@pytest.mark.parametrize("size", [1, 7, 100])
def test_pieces_do_not_matter(table: pa.Table, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, tried = counted(table, len(table))
    monkeypatch.setattr(tried_wheels, "_AT_ONCE", 20)
    monkeypatch.setattr(tried_wheels, "_KEPT_PARTS", 3)
    others, other_tried = counted(table, size)
    last_of = {"first_uses": ["first"], "armed": ["moment", "nth"]}
    for name, keys in cube.KINDS.items():
        one, two = (found[name].sort_values(list(keys)) for found in (tables, others))
        if order := last_of.get(name):  # a part has its own; the report takes the first or last
            own = two.sort_values(order).groupby(list(cube.WHEEL))
            two = own.head(1) if name == "first_uses" else own.tail(1)
            two = two.sort_values(list(keys))
        assert len(one)
        assert one.astype(str).to_numpy().tolist() == two.astype(str).to_numpy().tolist(), name
    assert other_tried == tried
    assert tables["armed"]["pending_max"].max() == 7


def test_nothing_counted_is_nothing(table: pa.Table) -> None:
    with connection(1) as base:
        base.register("events", table.slice(0, 0))
        lines = cube.count(base, 1, wheels.candidates())
    assert len(lines) == 0
    assert all(len(each) == 0 for each in cube.tables(lines).values())
