"""The house rules that no other tool checks. `make check` runs this; CONTRIBUTING.md says why.

    python tools/house_rules.py [CHECKOUT]

Prints one line per violation (file:line: rule: what was got; what to do) and exits with 1 if there
is any. Each rule is a function from one file, or from all, to violations.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import agreed

MAX_FILE_LINES = 400
"""The limit; the aim is 300."""
MAX_FUNCTION_LINES = 60
"""The limit; the aim is 40. Signature and docstring do not count."""
COMMENT_REACH = 4
"""How many lines above an atomic operation its `pairs:` comment may end."""
NOT_OURS = re.compile(r"\.(?!ci$).*|build|dist|__pycache__|.*\.egg-info")
"""Folders that are passed over where git cannot be asked."""

MAY_IMPORT = {
    "core/wheeld_core": {"wheeld_core"},
    "client/wheeld_client": {"wheeld_client", "wheeld_core"},
    "pipeline/wheeld_pipeline": {"wheeld_pipeline", "wheeld_client", "wheeld_core"},
    "wheeld": {"wheeld", "wheeld_core", "wheeld_client"},
}
"""Which of our packages the code in a folder may import: of wheeld_core and of its own package any
module, of the others what their top level offers."""
OUR_PACKAGES = set().union(*MAY_IMPORT.values())


@dataclass(frozen=True, order=True)
class Violation:
    """One line of the output."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Source:
    """A text file of the checkout; `path` is relative to `root`."""

    root: Path
    path: str
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The syntax tree of a Python file, each node before those below it."""
        return list(ast.walk(ast.parse(self.text, self.path)))

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return self.text.splitlines()

    def is_python(self) -> bool:
        """Whether rules for Python apply."""
        return self.path.endswith(".py")

    def is_c(self) -> bool:
        """Whether rules for C apply."""
        return self.path.endswith((".c", ".h"))

    def violation(self, line: int, rule: str, message: str) -> Violation:
        """A violation in this file."""
        return Violation(self.path, line, rule, message)


def sources(root: Path) -> list[Source]:
    """All text files that git tracks or would track; outside a git checkout, all files."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [root / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [
            path
            for path in root.rglob("*")
            if not any(map(NOT_OURS.fullmatch, path.relative_to(root).parts[:-1]))
        ]
    found = []
    for path in sorted(path for path in paths if path.is_file()):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found.append(Source(root, path.relative_to(root).as_posix(), text))
    return found


# -- size ------------------------------------------------------------------------------------------


def file_length(source: Source) -> Iterator[Violation]:
    """One file is one idea."""
    count = len(source.lines)
    if (source.is_python() or source.is_c()) and count > MAX_FILE_LINES:
        message = f"{count} lines, the limit is {MAX_FILE_LINES}; split it by idea"
        yield source.violation(1, "file-length", message)


def function_length(source: Source) -> Iterator[Violation]:
    """A function fits on a screen."""
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
    if folder is None or not source.is_python():
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
    if not inside:
        return False
    first = inside.split(".")[0]
    home = next(home for home in MAY_IMPORT if home.split("/")[-1] == package)
    return "." in inside or any((root / home / f"{first}{end}").exists() for end in ("", ".py"))


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
    """What we start imports nothing from the directory in which its user happens to be."""
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
    """A destructor that comes into the client in the middle of a call of its own thread would wait
    for itself, and so would a signal handler."""
    if not source.is_python() or not source.path.startswith("client/"):
        return
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        where, name = node.func.value, node.func.attr
        if not (isinstance(where, ast.Name) and where.id == "threading" and name in LOCKS):
            continue
        if NOT_WAITED_FOR not in source.lines[node.lineno - 1]:
            message = f"threading.{name}; use what can be entered again: SimpleQueue, deque, RLock"
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


# -- atomics ---------------------------------------------------------------------------------------

ATOMICS = "core/include/wheeld/shared/atomics.h"
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
ORDERED = re.compile(r"\bwh_((?:load|store|cas|exchange|fetch)_(?!relaxed)\w+)\s*\(")
RAW = re.compile(r"\b(?:atomic_[a-z]\w*|__atomic_\w+|__sync_\w+|volatile)\b")
PAIRS = re.compile(r"\bpairs:\s*([\w-]+(?:,\s*[\w-]+)*)")


@dataclass(frozen=True)
class Place:
    """One ordered operation, or a Python line that says it is a partner of one."""

    source: Source
    line: int
    operation: str

    @property
    def reads(self) -> bool:
        """Whether it can see what a partner wrote."""
        return not self.operation.startswith("store")

    @property
    def writes(self) -> bool:
        """Whether a partner can see what it wrote."""
        return not self.operation.startswith("load")


def _without_comments(text: str) -> str:
    return C_COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _tags(text: str) -> list[str]:
    return [tag.strip() for match in PAIRS.finditer(text) for tag in match[1].split(",")]


def _comments(text: str) -> dict[int, list[str]]:
    """Tags by the line in which their comment ends."""
    found: dict[int, list[str]] = defaultdict(list)
    for match in C_COMMENT.finditer(text):
        found[text.count("\n", 0, match.end()) + 1] += _tags(match[0])
    return found


def atomics(source: Source, places: dict[str, list[Place]]) -> Iterator[Violation]:
    """Each ordered operation names its partner; its tags are added to `places`."""
    if not source.is_c() or not source.path.startswith("core/") or source.path == ATOMICS:
        return
    comments = _comments(source.text)
    last = 0
    for number, line in enumerate(_without_comments(source.text).splitlines(), 1):
        if raw := RAW.search(line):
            yield source.violation(number, "atomics", f"{raw[0]}; use the operations of atomics.h")
        operations = ORDERED.findall(line)
        if not operations:
            continue
        reach = range(max(last + 1, number - COMMENT_REACH), number + 1)
        tags = [tag for above in reach for tag in comments.get(above, ())]
        if not tags:
            message = f"wh_{operations[0]} names no partner; add /* pairs: TAG - what breaks */"
            yield source.violation(number, "pairs", message)
        for tag in tags:
            places[tag] += [Place(source, number, operation) for operation in operations]
        last = number


def partners(found: list[Source]) -> Iterator[Violation]:
    """Each tag joins at least two places, of which one writes and one reads."""
    places: dict[str, list[Place]] = defaultdict(list)
    for source in found:
        yield from atomics(source, places)
        if source.is_python() and source.path.startswith(tuple(MAY_IMPORT)):
            for number, line in enumerate(source.lines, 1):
                for tag in _tags(line.partition("#")[2]):
                    places[tag].append(Place(source, number, "python"))
    for tag, joined in sorted(places.items()):
        first = joined[0]
        lacking = ""
        if len({(place.source.path, place.line) for place in joined}) < 2:
            lacking = "is named in one place only"
        elif not any(place.writes for place in joined):
            lacking = "has no side that writes"
        elif not any(place.reads for place in joined):
            lacking = "has no side that reads"
        if lacking:
            message = f"'{tag}' {lacking}; name it beside its partner too"
            yield first.source.violation(first.line, "pairs", message)


# -- constants -------------------------------------------------------------------------------------

HEADERS = "core/include/wheeld/"


def constants(found: list[Source]) -> Iterator[Violation]:
    """What processes must agree on goes into the fingerprint."""
    headers = {
        Path(source.path).name: source for source in found if source.path.startswith(HEADERS)
    }
    if "agreed.h" in headers:
        for name, message in agreed.lapses({name: s.text for name, s in headers.items()}):
            yield headers[name].violation(1, "agreed", message)


def check(root: Path) -> list[Violation]:
    """All violations in a checkout, sorted."""
    found = sources(root)
    code = (layers, shared_memory, descriptors, safe_path, locks)
    per_file = (file_length, function_length, *code, unwanted_text)
    violations = [bad for source in found for rule in per_file for bad in rule(source)]
    return sorted({*violations, *partners(found), *constants(found)})


def main() -> int:
    """Check the checkout given, else the one this file is in."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    violations = check(root)
    for violation in violations:
        print(violation)
    if not violations:
        print("house rules: all kept")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
