"""The house rules that no other tool checks. `make check` runs this; CONTRIBUTING.md says why.

    python tools/house_rules.py [CHECKOUT]

Prints one line per violation (file:line: rule: what was got; what to do) and exits with 1 if there
is any. Each rule is a function from one file, or from all, to violations.
"""

from __future__ import annotations

import ast
import gc
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import agreed
import memory_orders
from sources import Source, Violation, sources

MAX_C_COLUMNS = 100
MAX_FUNCTION_LINES = 60
"""The limit; the aim is 40. Signature and docstring do not count."""
MAY_IMPORT = {
    "core/wheeld_core": {"wheeld_core"},
    "client/wheeld_client": {"wheeld_client", "wheeld_core"},
    "pipeline/wheeld_pipeline": {"wheeld_pipeline", "wheeld_client", "wheeld_core"},
    "testing/wheeld_testing": {"wheeld_testing", "wheeld", "wheeld_client", "wheeld_core"},
    "wheeld": {"wheeld", "wheeld_core", "wheeld_client"},
}
"""Which of our packages the code in a folder may import: of wheeld_core and of its own package any
module, of the others what their top level offers."""
ALSO_TOP_LEVEL = "wheeld_client.replay"
"""The driver of the demo and of `wheeld pipeline replay`; a client that works loads none of it."""
STARTS_DAEMONS = "pipeline/wheeld_pipeline/testing.py"
"""A fixture for users' tests, which no other code of the pipeline imports."""
OUR_PACKAGES = set().union(*MAY_IMPORT.values())


# -- size ------------------------------------------------------------------------------------------


def columns(source: Source) -> Iterator[Violation]:
    """clang-format breaks no comment; neither breaks a string."""
    for number, line in enumerate(source.lines if source.is_c() else (), 1):
        if len(line) > MAX_C_COLUMNS and '"' not in line:
            message = f"{len(line)} columns, the limit is {MAX_C_COLUMNS}"
            yield source.violation(number, "columns", message)


def function_length(source: Source) -> Iterator[Violation]:
    lengths = ()
    if source.is_python():
        lengths = _python_functions(source)
    elif source.is_c():
        lengths = _c_functions(source)
    for line, name, count in lengths:
        if count > MAX_FUNCTION_LINES:
            message = f"{name} has {count} lines, the limit is {MAX_FUNCTION_LINES}; split it"
            yield source.violation(line, "function-length", message)


def _python_functions(source: Source) -> Iterator[tuple[int, str, int]]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
            if body:
                yield node.lineno, node.name, (body[-1].end_lineno or 0) - body[0].lineno + 1


def _c_functions(source: Source) -> Iterator[tuple[int, str, int]]:
    """Functions open and close with a brace in the first column."""
    opened = None
    for number, line in enumerate(source.lines, 1):
        if line == "{":
            opened = number
        elif line.startswith("}") and opened is not None:
            above = " ".join(source.lines[max(0, opened - 4) : opened - 1])
            names = re.findall(r"(\w+)\s*\(", above)
            yield opened, names[-1] if names else "function", number - opened - 1
            opened = None


# -- layers ----------------------------------------------------------------------------------------


def layers(source: Source) -> Iterator[Violation]:
    """The core knows neither side; daemon and client never import each other's insides."""
    folder = next((home for home in MAY_IMPORT if source.path.startswith(home + "/")), None)
    if folder is None or not source.is_python() or source.path == STARTS_DAEMONS:
        return
    own = folder.split("/")[-1]
    for line, module in imports(source):
        package = module.split(".")[0]
        if package not in OUR_PACKAGES:
            continue
        if package not in MAY_IMPORT[folder]:
            allowed = ", ".join(sorted(MAY_IMPORT[folder]))
            message = f"{own} imports {module}; it may import {allowed} only"
            yield source.violation(line, "layers", message)
        elif package not in (own, "wheeld_core") and _is_module(source.root, module):
            message = f"{own} imports {module}; take what the top level of {package} offers"
            yield source.violation(line, "layers", message)


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _is_module(root: Path, dotted: str) -> bool:
    """Whether a dotted name reaches below the top level of one of our packages."""
    package, _, inside = dotted.partition(".")
    home = root / next(home for home in MAY_IMPORT if home.split("/")[-1] == package)
    if dotted.startswith(f"{ALSO_TOP_LEVEL}."):
        home, inside = home / inside.partition(".")[0], inside.partition(".")[2]
    if not inside:
        return False
    first = inside.split(".")[0]
    return "." in inside or any((home / f"{first}{end}").exists() for end in ("", ".py"))


def shared_memory(source: Source) -> Iterator[Violation]:
    """The resource tracker of multiprocessing unlinks segments that others still need."""
    if not source.is_python():
        return
    for line, module in imports(source):
        if module.startswith("multiprocessing.shared_memory"):
            message = f"imports {module}; use wheeld_core.segments"
            yield source.violation(line, "shared-memory", message)


def descriptors(source: Source) -> Iterator[Violation]:
    """`select` fails from descriptor 1024 on, and a daemon has two for each worker."""
    if not source.is_python() or source.path.startswith("tests/"):
        return
    for node in source.nodes:
        if _is(node, "select.select"):
            message = "select.select takes no descriptor beyond 1,023; use select.poll"
            yield source.violation(node.lineno, "descriptors", message)


def safe_path(source: Source) -> Iterator[Violation]:
    """Child processes must not import anything from the user's current directory."""
    if not source.is_python() or not source.path.startswith(tuple(MAY_IMPORT)):
        return
    for node in source.nodes:
        for word, following in itertools.pairwise(ast.iter_child_nodes(node)):
            if _is(word, "sys.executable") and (found := ast.unparse(following)) != "'-P'":
                message = f"sys.executable is followed by {found}; put '-P' between them"
                yield source.violation(node.lineno, "safe-path", message)


def _is(node: ast.AST, dotted: str) -> bool:
    attribute = isinstance(node, ast.Attribute) and dotted.endswith(node.attr)
    return attribute and ast.unparse(node) == dotted


LOCKS = {"Lock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"}
NOT_WAITED_FOR = "# never waited for"


def locks(source: Source) -> Iterator[Violation]:
    """A destructor or signal handler that enters the client in the middle of a call of the same
    thread would deadlock on a lock."""
    if not source.is_python() or not source.path.startswith("client/"):
        return
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        where, name = node.func.value, node.func.attr
        if not (isinstance(where, ast.Name) and where.id == "threading" and name in LOCKS):
            continue
        if NOT_WAITED_FOR not in source.lines[node.lineno - 1]:
            message = f"threading.{name}; use something reentrant: SimpleQueue, deque, RLock"
            yield source.violation(node.lineno, "lock", message)


# -- text ------------------------------------------------------------------------------------------

UNWANTED = {
    "machine-path": (
        re.compile(r"(?<![\w.])/(?:work|root|home)/"),
        "name a place that every machine has, or make the path an option",
    ),
    "unfinished": (re.compile(r"\b(?:TO(?:DO)|FIX(?:ME))\b"), "finish it, or leave it out"),
}


def unwanted_text(source: Source) -> Iterator[Violation]:
    """No paths of one machine, nothing left for later."""
    for number, line in enumerate(source.lines, 1):
        for rule, (pattern, advice) in UNWANTED.items():
            if match := pattern.search(line):
                yield source.violation(number, rule, f"{match[0]!r}; {advice}")


# -- loops ----------------------------------------------------------------------------------------

ENDED_BY_OTHERS = re.compile(r"\bwhile\b.*\b(?:os\.read|read|recv\w*|wh_load_\w+)\(")
OF_OTHERS = {
    *("accept", "connect", "flock", "open", "produce", "read", "readline", "receive", "recv"),
    *("recv_fds", "sock_accept", "sock_recv", "_grow", "find", "serve"),
}
"""Calls in a `while True` that others can let fail, or succeed, again and again."""
BOUNDS = {"give_up", "tries", "until"}
"""Names of a deadline or a count, where a `while True` has one."""


BEGINNING = re.compile(r"(?:^|(?<=[.:] ))((?:What|Those|That of) [^.?!]*)(?=([.?!])|$)")
"""A sentence without an actor; a question may begin with What."""


def beginnings(source: Source) -> Iterator[Violation]:
    """A sentence begins with its subject."""
    for line, text in _prose(source):
        for found in BEGINNING.finditer(" ".join(text.split())):
            if found[2] != "?":
                said = found[1] if len(found[1]) <= 40 else found[1][:40] + "..."
                yield source.violation(line, "beginning", f"{said!r}: begin with who does it")


def _prose(source: Source) -> Iterator[tuple[int, str]]:
    """Docstrings, comments of C, paragraphs and items of pages."""
    if source.is_python():
        for node in source.nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield from ((node.lineno, part) for part in str(node.value.value).split("\n\n"))
    elif source.is_c():
        for found in re.finditer(r"/\*(.*?)\*/", source.text, re.DOTALL):
            line = source.text.count("\n", 0, found.start()) + 1
            yield line, re.sub(r"\n\s*\*?", " ", found[1])
    elif source.path.endswith(".md"):
        at = 1
        for part in re.split(r"(\n\n|\n(?=\s*(?:[-*|]|\d+\.) ))", source.text):
            yield at + part.count("\n", 0, len(part) - len(part.lstrip())), part.strip(" -|\n")
            at += part.count("\n")


def loops(source: Source) -> Iterator[Violation]:
    """No loop ends only when others stop writing what its condition reads."""
    if not source.path.startswith((*MAY_IMPORT, "examples/", "client/", "core/")):
        return
    for number, line in enumerate(source.lines, 1):
        if (
            (source.is_c() or source.is_python())
            and ENDED_BY_OTHERS.search(line)
            and "bounded by" not in line
        ):
            message = f"{line.strip()!r} has no bound of its own; count, or say `bounded by` what"
            yield source.violation(number, "endless", message)
    for node in source.nodes if source.is_python() else ():
        if isinstance(node, ast.While) and ast.unparse(node.test) == "True":
            names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            bounds = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & BOUNDS
            line = source.lines[node.lineno - 1]
            if names & OF_OTHERS and not bounds and "bounded by" not in line:
                message = f"{line.strip()!r} waits for others: count, or say `bounded by` what"
                yield source.violation(node.lineno, "endless", message)


# -- constants -------------------------------------------------------------------------------------

HEADERS = "core/include/wheeld/"


def constants(found: list[Source]) -> Iterator[Violation]:
    """Constants that processes must agree on go into the fingerprint."""
    headers = {
        Path(source.path).name: source for source in found if source.path.startswith(HEADERS)
    }
    if "agreed.h" in headers:
        for name, message in agreed.lapses({name: s.text for name, s in headers.items()}):
            yield headers[name].violation(1, "agreed", message)


def check(root: Path) -> list[Violation]:
    gc.disable()  # a million nodes, which stay: a third of the time for nothing
    found = sources(root)
    code = (layers, shared_memory, descriptors, safe_path, locks, loops)
    per_file = (columns, function_length, *code, unwanted_text, beginnings)
    violations = [bad for source in found for rule in per_file for bad in rule(source)]
    gc.enable()
    return sorted(
        {
            *violations,
            *memory_orders.partners(found, tuple(MAY_IMPORT)),
            *constants(found),
        }
    )


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    violations = check(root)
    for violation in violations:
        print(violation)
    if not violations:
        print("house rules: all kept")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
