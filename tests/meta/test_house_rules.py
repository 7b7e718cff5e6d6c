"""The house rules: each goes red on a small example, and this checkout keeps them all."""

import subprocess
import sys
from pathlib import Path

import pytest

import house_rules
import memory_orders
import namesakes
from programs import ROOT
from sources import sources

CHECKOUT = Path(__file__).resolve().parents[2]
HEADER = "core/include/wheeld/example.h"
STORE = "wh_store_release(&s->ready, 1); /* pairs: ready */\n"
LOAD = "return wh_load_acquire(&s->ready); /* pairs: ready */\n"


def found(root: Path, files: dict[str, str]) -> list[tuple[str, int, str]]:
    """Write `files` and return path, line and rule of each violation."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [(bad.path, bad.line, bad.rule) for bad in house_rules.check(root)]


def python_function(lines: int) -> str:
    docstring = '    """A docstring\n\n    that does not count.\n    """\n'
    return "def long(\n    argument,\n):\n" + docstring + "    argument += 1\n" * lines


def c_function(lines: int) -> str:
    return "static int long_one(int a,\n         int b)\n{\n" + "    a++;\n" * lines + "}\n"


@pytest.mark.parametrize("name", ["wheeld/a.py", "core/a.c", "core/a.h"])
def test_file_length(tmp_path: Path, name: str) -> None:
    assert found(tmp_path, {name: "\n" * 400}) == []
    assert found(tmp_path, {name: "\n" * 401}) == [(name, 1, "file-length")]


def test_long_files_are_named() -> None:
    """Each of them is there, and too long still."""
    for path in house_rules.LONG_FILES:
        lines = (ROOT / path).read_text().splitlines()
        assert len(lines) > house_rules.MAX_FILE_LINES, path


def test_columns(tmp_path: Path) -> None:
    """Of C; what clang-format cannot break, a string, may be longer."""
    fits, long = "/* " + "x" * 94 + " */\n", "/* " + "x" * 95 + " */\n"
    assert found(tmp_path, {"core/a.h": fits}) == []
    assert found(tmp_path, {"core/a.h": "\n" + long}) == [("core/a.h", 2, "columns")]
    assert found(tmp_path, {"core/a.h": f'char *text = "{"x" * 100}";\n'}) == []


def test_length_of_other_files_is_free(tmp_path: Path) -> None:
    assert found(tmp_path, {"docs/long.md": "text\n" * 1000}) == []


def test_function_length(tmp_path: Path) -> None:
    assert found(tmp_path, {"a.py": python_function(60), "a.c": c_function(60)}) == []
    assert found(tmp_path, {"a.py": python_function(61), "a.c": c_function(61)}) == [
        ("a.c", 3, "function-length"),
        ("a.py", 1, "function-length"),
    ]


def test_function_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(c_function(61))
    assert "long_one has 61 lines" in str(house_rules.check(tmp_path)[0])


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/wheeld_core/a.py", "import wheeld_client"),
        ("core/wheeld_core/a.py", "from wheeld import config"),
        ("client/wheeld_client/a.py", "import wheeld"),
        ("client/wheeld_client/a.py", "def f():\n    from wheeld.config.settings import Config"),
        ("wheeld/a.py", "from wheeld_client.timers.timers import Timers"),
        ("wheeld/a.py", "import wheeld_client.timers.timers"),
        ("wheeld/a.py", "from wheeld_client import timers"),
        ("wheeld/a.py", "import wheeld_pipeline"),
        ("wheeld/a.py", "from wheeld_client.replay.player import Player"),
        ("wheeld/a.py", "from wheeld_client.replay import player"),
    ],
)
def test_layers_red(tmp_path: Path, path: str, line: str) -> None:
    others = ("client/wheeld_client/timers/timers.py", "client/wheeld_client/replay/player.py")
    files = {path: line + "\n", **dict.fromkeys(others, "")}
    assert found(tmp_path, files) == [(path, line.count("\n") + 1, "layers")]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/wheeld_core/a.py", "from wheeld_core.errors import WheelError"),
        ("client/wheeld_client/a.py", "from wheeld_core.errors import WheelError"),
        ("client/wheeld_client/a.py", "from wheeld_client.timers.timers import Timers"),
        ("wheeld/a.py", "from wheeld_client import Timers"),
        ("wheeld/a.py", "import wheeld_client"),
        ("wheeld/a.py", "from wheeld_client.replay import Player"),
        ("pipeline/wheeld_pipeline/a.py", "import wheeld_core"),
        ("tests/a.py", "from wheeld_client.timers.timers import Timers"),
    ],
)
def test_layers_green(tmp_path: Path, path: str, line: str) -> None:
    assert found(tmp_path, {path: line + "\n", "client/wheeld_client/timers/timers.py": ""}) == []


@pytest.mark.parametrize(
    "line",
    [
        "import multiprocessing.shared_memory",
        "from multiprocessing import shared_memory",
        "from multiprocessing.shared_memory import SharedMemory",
    ],
)
def test_shared_memory(tmp_path: Path, line: str) -> None:
    assert found(tmp_path, {"a.py": line + "\n"}) == [("a.py", 1, "shared-memory")]


def test_descriptors(tmp_path: Path) -> None:
    text = "import select\nselect.select([0], [], [])\npoll = select.poll()\n"
    bad = found(tmp_path, {"wheeld/a.py": text, "tests/a.py": text})
    assert bad == [("wheeld/a.py", 2, "descriptors")]


@pytest.mark.parametrize("call", ["[{}]", "run({})", "run(\n{}\n)"])
def test_safe_path(tmp_path: Path, call: str) -> None:
    for name in ("wheeld/a.py", "pipeline/wheeld_pipeline/a.py"):
        bad = found(tmp_path, {name: call.format("sys.executable, '-m', 'wheeld'")})
        assert bad == [(name, 1, "safe-path")]
        good = "sys.executable, '-P', '-m', 'wheeld'"
        assert (
            found(
                tmp_path, {name: call.format(good), "tests/a.py": call.format("sys.executable, x")}
            )
            == []
        )


def test_locks(tmp_path: Path) -> None:
    text = "lock = threading.Lock()\nwake = threading.Event()\n"
    assert found(tmp_path, {"client/wheeld_client/a.py": text}) == [
        ("client/wheeld_client/a.py", 1, "lock"),
        ("client/wheeld_client/a.py", 2, "lock"),
    ]


def test_locks_green(tmp_path: Path) -> None:
    text = "a = threading.Lock()  # never waited for\nb = threading.RLock()\nc = asyncio.Event()\n"
    assert found(tmp_path, {"client/wheeld_client/a.py": text}) == []
    assert found(tmp_path, {"wheeld/a.py": "lock = threading.Lock()\n"}) == []


@pytest.mark.parametrize("folder", ["work", "root", "home"])
def test_machine_path(tmp_path: Path, folder: str) -> None:
    bad = found(tmp_path, {"a.md": f"fine\nsee /{folder}/x\n"})
    assert bad == [("a.md", 2, "machine-path")]


def test_machine_path_green(tmp_path: Path) -> None:
    text = "ProtectHome=yes, /homes/x, https://example.org/home/x, net/work/x\n"
    assert found(tmp_path, {"a.md": text}) == []


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME"])
def test_unfinished(tmp_path: Path, word: str) -> None:
    assert found(tmp_path, {"a.sh": f"# {word}: later\n"}) == [("a.sh", 1, "unfinished")]


def test_pairs_green(tmp_path: Path) -> None:
    above = "/* pairs: ready, other-tag - a reason\n * in two lines */\n\n\nwh_store_seq(p, 1);\n"
    back = "if (wh_cas_acq_rel(p, &a, b)) // pairs: other-tag\n"
    relaxed = "wh_store_relaxed(p, 1); wh_count(p, 1); wh_load_relaxed(p);\n"
    mentioned = "/* wh_load_acquire(p) would do */\n"
    assert found(tmp_path, {HEADER: above + LOAD + back + relaxed + mentioned}) == []


@pytest.mark.parametrize("operation", ["load_acquire", "store_seq", "cas_acq_rel", "exchange_seq"])
def test_operation_without_partner(tmp_path: Path, operation: str) -> None:
    text = f"{STORE}{LOAD}wh_{operation}(p);\n"
    # the comments above belong to the operations in their own lines
    assert found(tmp_path, {HEADER: text}) == [(HEADER, 3, "pairs")]


def test_comment_out_of_reach(tmp_path: Path) -> None:
    far = "/* pairs: ready */" + "\n" * 5 + "wh_store_release(p, 1);\n"
    assert found(tmp_path, {HEADER: far + STORE + LOAD}) == [(HEADER, 6, "pairs")]


@pytest.mark.parametrize("text", [STORE, STORE + STORE, LOAD + LOAD])
def test_partner_does_not_name_it_back(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, {HEADER: text}) == [(HEADER, 1, "pairs")]


def test_partner_in_python(tmp_path: Path) -> None:
    files = {HEADER: LOAD, "wheeld/a.py": "rows['state'] = 2  # pairs: ready - last\n"}
    assert found(tmp_path, files) == []


def test_raw_atomics(tmp_path: Path) -> None:
    files = {
        HEADER: "volatile int a;\natomic_thread_fence(memory_order_seq_cst);\n",
        memory_orders.ATOMICS: "#define wh_load_seq(p) atomic_load_explicit((p), 0)\n",
    }
    assert found(tmp_path, files) == [(HEADER, 1, "atomics"), (HEADER, 2, "atomics")]


def test_script_reports_and_fails(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("\n" * 401)
    command = [sys.executable, house_rules.__file__, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stdout == "a.c:1: file-length: 401 lines, the limit is 400; split it by idea\n"


def test_this_checkout_keeps_the_rules() -> None:
    assert [str(bad) for bad in house_rules.check(CHECKOUT)] == []


def test_a_start_does_not_load_what_prints() -> None:
    """`wheeld start` is to serve soon; what only other commands need is loaded by them."""
    others = {"rich.console", "psutil", "pyarrow", "pyspark"}
    code = f"import sys, wheeld.cli.start; print(sorted({others!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_importing_the_client_loads_nothing_large() -> None:
    large = {"typer", "pyarrow", "pyspark", "matplotlib", "wheeld"}
    code = f"import sys, wheeld_client; print(sorted({large!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


# -- the table of memory orders --------------------------------------------------------------------

HEAD = "| tag | stores | loads | what breaks without it |\n|---|---|---|---|\n"
ROW = f"| `ready` | {Path(HEADER).name} | {Path(HEADER).name} | Half of it is read. |\n"


def test_the_table_has_all_tags() -> None:
    root = Path(house_rules.__file__).parents[1]
    rows = (root / memory_orders.TABLE).read_text().splitlines()
    tags = {row["tag"] for line in rows if (row := memory_orders.ROW.match(line))}
    places, _ = memory_orders.named(house_rules.sources(root), memory_orders.PACKAGES)
    assert tags == set(places)
    assert len(tags) > 40


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        (ROW, 0, ""),
        ("", 1, "'ready' has not the files of the code"),
        (
            ROW.replace("| example.h", "| a.h, example.h", 1),
            3,
            "'ready' has not the files of the code",
        ),
        (ROW.replace("Half of it is read.", " "), 3, "'ready': say what breaks"),
        (ROW + ROW, 4, "'ready' has a row already"),
        (ROW + ROW.replace("ready", "gone"), 4, "no operation names 'gone'"),
    ],
    ids=["as it is", "no row", "a file too many", "no reason", "twice", "no operation"],
)
def test_table_of_orders(tmp_path: Path, rows: str, line: int, message: str) -> None:
    files = {HEADER: STORE + LOAD, memory_orders.TABLE: HEAD + rows}
    assert found(tmp_path, files) == ([(memory_orders.TABLE, line, "pairs")] if line else [])
    assert message in "".join(map(str, house_rules.check(tmp_path)))


def test_writing_the_table(tmp_path: Path) -> None:
    """Files follow the code, what breaks is kept, a new tag gets a row that asks for it."""
    new = (STORE + LOAD).replace("ready", "new-one")
    stale = ROW.replace(Path(HEADER).name, "old.h")
    files = {HEADER: STORE + LOAD + new, memory_orders.TABLE: HEAD + stale + "\nAfter it.\n"}
    assert len(found(tmp_path, files)) == 2
    memory_orders.write(tmp_path)
    text = (tmp_path / memory_orders.TABLE).read_text()
    assert ROW in text
    assert text.endswith("\nAfter it.\n")
    (left,) = house_rules.check(tmp_path)
    assert "'new-one': say what breaks" in str(left)


def test_namesakes(tmp_path: Path) -> None:
    """The second class of a name, unless it is a test's, or nobody's business but its module's."""
    one = {"wheeld/a.py": "class Parcel: ...\n"}
    assert found(tmp_path, {**one, "tests/a.py": "class Parcel: ...\n"}) == []
    assert (
        found(tmp_path, {"wheeld/b.py": "class _Own: ...\n", "core/b.py": "class _Own: ...\n"})
        == []
    )
    again = found(tmp_path, {"wheeld/c.py": "\nclass Parcel: ...\n"})
    assert again == [("wheeld/c.py", 2, "namesake")]


def test_a_listed_name_is_counted(tmp_path: Path) -> None:
    """One more than the list says is noticed, too."""
    files = {f"wheeld/{n}.py": "class Connection: ...\n" for n in range(2)}
    assert found(tmp_path, files) == []
    assert found(tmp_path, {"wheeld/2.py": "class Connection: ...\n"})


def test_the_list_of_namesakes_is_needed() -> None:
    """Each entry by as many classes as it says."""
    assert namesakes.outdated(sources(CHECKOUT)) == []
