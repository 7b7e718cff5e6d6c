"""This checkout keeps the house rules, and what is imported loads nothing large."""

import subprocess
import sys
from pathlib import Path

import house_rules
import memory_orders

CHECKOUT = Path(__file__).resolve().parents[2]


def test_this_checkout_keeps_the_rules() -> None:
    assert [str(bad) for bad in house_rules.check(CHECKOUT)] == []


def test_a_start_does_not_load_what_prints() -> None:
    others = {"typer", "rich", "psutil", "pyarrow", "pyspark"}
    code = f"import sys, wheeld.supervisor.launch; print(sorted({others!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_importing_the_client_loads_nothing_large() -> None:
    large = {"typer", "pyarrow", "pyspark", "matplotlib", "wheeld"}
    code = f"import sys, wheeld_client; print(sorted({large!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


# -- the table of memory orders --------------------------------------------------------------------


def test_the_table_has_all_tags() -> None:
    root = Path(house_rules.__file__).parents[1]
    rows = (root / memory_orders.TABLE).read_text().splitlines()
    tags = {row["tag"] for line in rows if (row := memory_orders.ROW.match(line))}
    places, _ = memory_orders.named(house_rules.sources(root), memory_orders.PACKAGES)
    assert tags == set(places)
    assert len(tags) > 40
