"""Merges many small folders of a sink into few files, while an overflow writes and others read.

    SINK/expired/            changes in one step for a folder with the same rows
    SINK/_compact/expired/   before that step the draft, after it what was there before
    SINK/_overflow.lock      held by whoever shows a folder: the driver, and this for its step

The draft has hard links to the unchanged folders, and one folder with one file for each run of
small folders. That folder is named after the last of them, with one more leading zero: `batch=012`
has rows of batches up to 12. So a name always stands for the same rows: a reader that has listed
the old folder finds those rows or a missing file, and never a row twice.

A stream of Spark remembers the paths of files that it has read. It mistakes a merged file for a new
one, unless the file is older by `maxFileAge` (7 days) than the newest file that the stream has
seen. So a merged file gets the age of the newest file in it, and only files that are older by
`older_than` than the sink's newest one are merged. A stream that has fallen further behind than the
difference reads merged rows again, and misses none.

Invariants
 1. The newest folder of each kind stays: after a death the driver looks for it.
 2. `expired` is complete at any moment; nobody reads `_compact`. 3. The old files are removed when
 the new ones are on disk.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from wheeld_core import durable
from wheeld_core.progress import show_progress
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.checkpoint.files import LocalFiles
from wheeld_pipeline.overflow.driver import sink as sinks

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER: Final = "_compact"
FILE_BYTES: Final = 128 << 20
OLDER_THAN: Final = 8 * 86400.0
GROUP_ROWS: Final = 1 << 18
"""Rows of a row group."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2


class Compacted(NamedTuple):
    kind: str
    folders_before: int
    folders: int
    files_before: int
    files: int
    rows: int
    """How many rows were rewritten."""


class _Folder(NamedTuple):
    path: Path
    files: list[Path]
    size: int
    changed: int
    """Time of its newest file, ns."""


def compact(
    sink: str, file_bytes: int = FILE_BYTES, older_than: float = OLDER_THAN
) -> list[Compacted]:
    """Merge the small folders of a sink, up to `file_bytes` each; an overflow may run meanwhile.

    Parameters
    ----------
    sink : str
    file_bytes : int
    older_than : float
        Seconds between the files that are merged and the newest. 0: no stream reads the sink.

    Raises
    ------
    PipelineError
        It is not a sink, is not on a local file system, or is being compacted.
    """
    base = sinks.local(sink)
    if base is None or not (base / sinks.CARD).exists():
        raise PipelineError(
            f"{sink}: expected the sink of an overflow on a local file system, with a "
            f"{sinks.CARD} in it"
        )
    files = LocalFiles(base)
    with files.locked(f"{FOLDER}.lock", wait=False) as mine:
        if not mine:
            raise PipelineError(f"{sink} is being compacted by another process: wait for its end")
        shutil.rmtree(base / FOLDER, ignore_errors=True)
        kinds = [kind for kind in sinks.KINDS if (base / kind).is_dir()]
        return [_compact(files, kind, file_bytes, older_than) for kind in kinds]


def _compact(files: LocalFiles, kind: str, file_bytes: int, older_than: float) -> Compacted:
    base = Path(files.base)
    shown, draft = base / kind, base / FOLDER / kind
    before = _folders(shown)
    until = max((one.changed for one in before), default=0) - int(older_than * 10**9)
    runs = _runs([one for one in before[:-1] if one.changed <= until], file_bytes)
    rows = 0
    with show_progress(f"compact {kind}", sum(map(len, runs)), "folders") as tell:
        for number, run in enumerate(runs, 1):
            rows += _merge(run, draft)
            tell(sum(map(len, runs[:number])))
    if runs:
        merged = {folder.path.name for run in runs for folder in run}
        _show(files, shown, draft, merged)
    after = _folders(shown)
    counts = [count for all_ in (before, after)
              for count in (len(all_), sum(len(folder.files) for folder in all_))]  # fmt: skip
    return Compacted(kind, counts[0], counts[2], counts[1], counts[3], rows)


def _show(files: LocalFiles, shown: Path, draft: Path, merged: set[str]) -> None:
    """Exchange the folders: from now on readers see the draft."""
    _link(shown, draft, merged)
    with files.locked(sinks.LOCK):
        _link(shown, draft, merged)  # what the driver has added meanwhile
        _swap(draft, shown)
    for folder in (shown.parent, draft.parent):
        durable.sync(folder)
    shutil.rmtree(draft.parent)


def _folders(shown: Path) -> list[_Folder]:
    found = [path for path in shown.iterdir() if re.fullmatch(r"batch=\d+", path.name)]
    found.sort(key=lambda path: sinks.batch_of(path.name))
    made = []
    for path in found:
        inside = sorted(path.glob("*.parquet"))
        found_ = [file.stat() for file in inside]
        changed = max((one.st_mtime_ns for one in found_), default=0)
        made.append(_Folder(path, inside, sum(one.st_size for one in found_), changed))
    return made


def _runs(folders: list[_Folder], most: int) -> list[list[_Folder]]:
    """Neighbours that are small enough together; a single file is left alone."""
    runs: list[list[_Folder]] = [[]]
    size = 0
    for folder in folders:
        if size + folder.size > most:
            runs.append([])
            size = 0
        runs[-1].append(folder)
        size += folder.size
    return [run for run in runs if sum(len(folder.files) for folder in run) > 1]


def _merge(run: list[_Folder], draft: Path) -> int:
    """Write the rows of some folders into one, in the order of batches; returns their number."""
    import pyarrow.parquet as pq

    folder = draft / run[-1].path.name.replace("=", "=0", 1)
    folder.mkdir(parents=True)
    files = [file for one in run for file in one.files]
    rows = sum(int(pq.read_metadata(file).num_rows) for file in files)
    schema = pq.read_schema(files[-1])
    path = folder / "merged.parquet"
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in _gathered(files, schema):
            writer.write_table(table)
    if (got := pq.read_metadata(path).num_rows) != rows:
        raise PipelineError(f"{path} has {got} rows, expected {rows}: nothing was changed")
    changed = max(one.changed for one in run)
    os.utime(path, ns=(changed, changed))
    for made in (path, folder):
        durable.sync(made)
    return rows


def _gathered(files: list[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows, in tables that make good row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts, rows = [], 0
    for file in files:
        table = pq.ParquetFile(file).read().select(schema.names).cast(schema)
        parts.append(table)
        rows += table.num_rows
        if rows >= GROUP_ROWS:
            yield pa.concat_tables(parts)
            parts, rows = [], 0
    if rows:
        yield pa.concat_tables(parts)


def _link(shown: Path, draft: Path, merged: set[str]) -> None:
    for path in shown.iterdir():
        if path.name not in merged and not (draft / path.name).exists():
            shutil.copytree(path, draft / path.name, copy_function=os.link)
            durable.sync(draft / path.name)
    durable.sync(draft)


def _swap(one: Path, other: Path) -> None:
    """Exchange two folders in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    swap: Callable[..., int] | None = getattr(libc, "renameat2", None)
    names = os.fsencode(one), os.fsencode(other)
    if swap is None or swap(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        why = os.strerror(ctypes.get_errno()) if swap else "the C library has no renameat2"
        raise PipelineError(
            f"{other}: {why}: its file system cannot exchange two folders in one step, as ext4, "
            "XFS, Btrfs and tmpfs can; nothing was changed"
        )
