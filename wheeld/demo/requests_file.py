"""Requests from a Parquet or CSV file, checked before anything starts."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.demo.workload import REQUEST
from wheeld_core import extras

COLUMNS: Final = {
    "arrival_ns": "whole numbers of ns, 0 or more",
    "latency_ms": "numbers of ms, 0 or more",
    "timeout_ms": "numbers of ms, 0 or more",
    "payload_bytes": "whole numbers of bytes, 0 or more",
}
WHOLE: Final = ("arrival_ns", "payload_bytes")
MAX_PAYLOAD: Final = 4096
"""Every slot of the wheel reserves as much as the largest payload, so there is a limit."""
MAX_MS: Final = 86_400_000.0


class RequestsFileError(ValueError):
    """A file of requests cannot be used; the message names file, column, and what was expected."""


def read(path: Path) -> npt.NDArray[Any]:
    """The requests of a file, in the order of arrival, the first at 0.

    It is Parquet if its name ends in .parquet or .pq, otherwise CSV with a header. Columns other
    than `COLUMNS` are ignored; rows may be in any order. `RequestsFileError`: it cannot be used.
    """
    if not path.is_file():
        raise RequestsFileError(f"{path}: no such file; expected Parquet or CSV")
    parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        columns = _read_parquet(path) if parquet else _read_csv(path)
    except OSError as error:
        raise RequestsFileError(f"{path}: cannot be read: {error}") from error
    for name, values in columns.items():
        _check_range(path, name, values)
    if not len(columns["arrival_ns"]):
        raise RequestsFileError(f"{path}: got no rows, expected at least one request")
    requests = np.empty(len(columns["arrival_ns"]), REQUEST)
    requests["arrival_ns"] = columns["arrival_ns"] - columns["arrival_ns"].min()
    requests["latency_ns"] = np.minimum(columns["latency_ms"], MAX_MS) * 1e6
    requests["timeout_ns"] = columns["timeout_ms"] * 1e6
    requests["payload_bytes"] = columns["payload_bytes"]
    return requests[np.argsort(requests["arrival_ns"], kind="stable")]


def _check_header(path: Path, found: list[str]) -> None:
    for name in COLUMNS:
        if name not in found:
            raise RequestsFileError(
                f"{path}: column {name} is missing; got {', '.join(found) or 'no columns'}; "
                f"expected {', '.join(COLUMNS)}"
            )


def _check_range(path: Path, name: str, values: npt.NDArray[Any]) -> None:
    most = {"timeout_ms": MAX_MS, "payload_bytes": MAX_PAYLOAD}.get(name, np.inf)
    bad = np.flatnonzero(~((values >= 0) & (values <= most) & np.isfinite(values)))
    if len(bad):
        limit = f", at most {most:.0f}" if np.isfinite(most) else ""
        raise _wrong(path, name, int(bad[0]), values[bad[0]].item(), limit)


def _wrong(path: Path, name: str, row: int, got: object, limit: str = "") -> RequestsFileError:
    return RequestsFileError(
        f"{path}: column {name}, row {row + 1}: got {got!r}; expected {COLUMNS[name]}{limit}"
    )


def _read_csv(path: Path) -> dict[str, npt.NDArray[Any]]:
    texts: dict[str, list[str]] = {name: [] for name in COLUMNS}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            _check_header(path, list(reader.fieldnames or []))
            for row in reader:
                for name, column in texts.items():
                    column.append(row[name] or "")
    except (UnicodeDecodeError, csv.Error) as error:
        raise RequestsFileError(f"{path}: got no CSV text ({error}); expected CSV") from error
    return {name: _parse(path, name, column) for name, column in texts.items()}


def _parse(path: Path, name: str, texts: list[str]) -> npt.NDArray[Any]:
    kind: type[int] | type[float] = int if name in WHOLE else float
    dtype = np.int64 if kind is int else np.float64
    try:
        return np.array([kind(text) for text in texts], dtype)
    except (ValueError, OverflowError):
        for row, text in enumerate(texts):
            try:
                dtype(kind(text))
            except (ValueError, OverflowError):
                raise _wrong(path, name, row, text) from None
        raise


def _read_parquet(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise RequestsFileError(
            f"{path}: Parquet needs pyarrow: {extras.command('parquet')}, or give a CSV file"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_header(path, file.schema_arrow.names)
            table = file.read(columns=list(COLUMNS))
    except pyarrow.ArrowException as error:
        raise RequestsFileError(f"{path}: got no Parquet ({error}); expected Parquet") from error
    columns = {}
    for name in COLUMNS:
        column, types = table.column(name), pyarrow.types
        whole = types.is_integer(column.type)
        if not (whole or (types.is_floating(column.type) and name not in WHOLE)):
            raise RequestsFileError(
                f"{path}: column {name}: got type {column.type}; expected {COLUMNS[name]}"
            )
        if column.null_count:
            raise RequestsFileError(
                f"{path}: column {name}: got {column.null_count} nulls; expected {COLUMNS[name]}"
            )
        columns[name] = column.to_numpy().astype(np.int64 if name in WHOLE else np.float64)
    return columns
