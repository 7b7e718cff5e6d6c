"""What a task counts does not depend on how its rows come: in one batch or in many."""

from typing import Any

import numpy as np
import pytest
from traces import EVENT_SCHEMA, START_US, Story, as_table, lost

from wheeld_pipeline.report.counts import rows, tally, tried_wheels, wheels


@pytest.fixture
def table(rng_seed: int) -> Any:
    rng = np.random.default_rng(rng_seed)
    stories = [Story(rng, 100, 60, run=f"{number:016x}").rows for number in (1, 2)]
    mixed = sorted((row for own in stories for row in own), key=lambda row: int(row["time"]))
    end = mixed[-1]  # as a pass writes it: many rows of one time
    mixed += [end | {"pending": pending} for pending in (9, 8, 7)]
    mixed.append(lost(START_US, "expired", 7, run=f"{1:016x}"))
    return as_table(mixed, EVENT_SCHEMA).select(list(rows.COLUMNS))


def counted(batches: Any, tried: wheels.Candidates) -> tuple[dict[str, Any], list[Any]]:
    counts, meetings = tally.Tally(1), tried_wheels.Meetings(tried)
    for batch in batches:
        decoded = rows.decode(batch)
        counts.add(decoded)
        meetings.add(decoded)
    tables = {}
    for name, kind in tally.KINDS.items():
        table = counts.tables()[name].sort_values(list(kind.keys))
        columns = [*kind.keys, *kind.sums, *kind.tops, *kind.lasts]
        tables[name] = table[columns].reset_index(drop=True)
    return tables, sorted(tuple(block.values()) for block in meetings.blocks())


@pytest.mark.parametrize("size", [1, 7, 100])
def test_batches_do_not_matter(table: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = wheels.candidates()
    tables, blocks = counted(table.combine_chunks().to_batches(), tried)
    monkeypatch.setattr(tried_wheels, "_AT_ONCE", 20)
    monkeypatch.setattr(tried_wheels, "_KEPT_PARTS", 3)
    batches = table.to_batches(max_chunksize=size)
    assert len(batches) == -(-len(table) // size)
    others, other_blocks = counted(batches, tried)
    for name, expected in tables.items():
        assert len(expected)
        assert others[name].astype(str).equals(expected.astype(str)), name
    assert other_blocks == blocks


def test_nothing_counted_is_nothing() -> None:
    assert tally.Tally(1).tables() == {}
    assert list(tried_wheels.Meetings(wheels.candidates()).blocks()) == []


def test_combinations_by_counting_and_by_sorting(rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    for sizes in ((3, 5), (1 << 20, 1 << 20)):  # the second has too many for a table
        keys = [rng.choice(rng.integers(0, size, 4), 200) for size in sizes]
        values, which = rows.combined(keys, sizes)
        for key, value in zip(keys, values, strict=True):
            assert (value[which] == key).all()
        found = list(zip(*(value.tolist() for value in values), strict=True))
        assert (
            len(found) == len(set(found)) == len(set(zip(*(k.tolist() for k in keys), strict=True)))
        )
