"""The house rules: each goes red on a small example, and this checkout keeps them all."""

import subprocess
import sys
from pathlib import Path

import pytest

import house_rules
import memory_orders

CHECKOUT = Path(__file__).resolve().parents[2]
HEADER = "core/include/wheeld/example.h"
STORE = "wh_store_release(&s->ready, 1); /* pairs: ready */\n"


def found(root: Path, files: dict[str, str]) -> list[tuple[str, int, str]]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [(bad.path, bad.line, bad.rule) for bad in house_rules.check(root)]


LONG_PYTHON = "def long():\n" + "    pass\n" * 61
LONG_C = "static int long_one(int a)\n{\n" + "    a++;\n" * 61 + "}\n"


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        ("columns", "core/a.h", "/* " + "x" * 95 + " */\n"),
        ("function-length", "a.py", LONG_PYTHON),
        ("function-length", "a.c", LONG_C),
        ("layers", "core/wheeld_core/a.py", "import wheeld_client\n"),
        ("layers", "client/wheeld_client/a.py", "import wheeld\n"),
        ("layers", "wheeld/a.py", "from wheeld_client.timers.timers import Timers\n"),
        ("layers", "wheeld/a.py", "import wheeld_pipeline\n"),
        ("shared-memory", "a.py", "from multiprocessing import shared_memory\n"),
        ("descriptors", "wheeld/a.py", "select.select([0], [], [])\n"),
        ("safe-path", "wheeld/a.py", "run(sys.executable, '-m', 'wheeld')\n"),
        ("lock", "client/wheeld_client/a.py", "lock = threading.Lock()\n"),
        ("endless", "core/a.c", "    while (read(fd, bytes, 8) == 8)\n"),
        ("endless", "client/wheeld_client/a.py", "while os.read(fd, 8):\n    pass\n"),
        ("endless", "wheeld/a.py", "while True:\n    end = listener.accept()\n"),
        ("beginning", "a.md", "All is well.\n\n- What was sent is kept.\n"),
        ("beginning", "wheeld/a.py", '"""The rows. Those of the dead go first."""\n'),
        ("beginning", "core/a.c", "/* That of the\n * clock. */\n"),
        ("machine-path", "a.md", "see /ho" + "me/x\n"),
        ("unfinished", "a.sh", "# TO" + "DO: later\n"),
        ("pairs", HEADER, "wh_load_acquire(p);\n"),
        ("pairs", HEADER, STORE),
        ("pairs", HEADER, STORE + STORE),
        ("pairs", HEADER, "/* pairs: ready */" + "\n" * 5 + "wh_store_release(p, 1);\n"),
        ("atomics", HEADER, "volatile int a;\n"),
    ],
)
def test_a_violation_is_found(tmp_path: Path, rule: str, path: str, text: str) -> None:
    others = {"client/wheeld_client/timers/timers.py": "", "client/wheeld_client/__init__.py": ""}
    assert {bad for _, _, bad in found(tmp_path, {**others, path: text})} == {rule}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/a.h", f'char *text = "{"x" * 100}";\n'),
        ("wheeld/a.py", "from wheeld_client import Timers\n"),
        ("client/wheeld_client/a.py", "a = threading.Lock()  # never waited for\n"),
        ("a.md", "ProtectHome=yes, /homes/x, https://example.org/home/x\n"),
        (HEADER, "/* wh_load_acquire(p) would do */ wh_store_relaxed(p, 1);\n"),
    ],
)
def test_other_text_is_none(tmp_path: Path, path: str, text: str) -> None:
    assert found(tmp_path, {path: text}) == []


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
