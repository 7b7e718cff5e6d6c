"""`python -m bench.pipeline.report`: how fast a trace becomes a report, beside DuckDB.

Each run is a process of its own: the whole command, from the start of Python to the last file, and
DuckDB answering the same questions. Answers have to be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench import result as shared
from bench.pipeline.made_trace import Maker

TARGET_ROWS_PER_SECOND = 2_000_000
TARGET_DRIVER_BYTES = 2 << 30
ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench" / "results" / "pipeline-report.json"
HOURS_PER_ROW = 24 / 100_000_000
SAMPLE_SECONDS = 0.2


def spark_run(trace: Path, out: Path, cores: int) -> dict[str, Any]:
    """In a process of its own: make the report, say how long what took and the driver's heap."""
    from wheeld_pipeline import session
    from wheeld_pipeline.commands.readers import settings
    from wheeld_pipeline.report import load, write

    begin = time.monotonic()
    steps: list[tuple[float, str]] = []
    with session.opened("bench", f"local[{cores}]", settings=settings(str(trace))) as spark:
        started = time.monotonic() - begin
        write(spark, trace, out, lambda text: steps.append((time.monotonic() - begin, text)))
        done = time.monotonic() - begin
        runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
        heap = int(runtime.maxMemory())
    report = load(out)
    return {
        "start_s": started,
        "report_s": done - started,
        "steps": steps,
        "driver_heap_limit": heap,
        "answers": answers(report),
        "step_seconds": report.facts["step_seconds"],
    }


def answers(report: Any) -> dict[str, Any]:
    tables, step = report.tables, report.facts["step_seconds"]
    minutes = [str(int(moment.timestamp()) // step) for moment in tables["minutes"]["time"]]
    classes = [str(delay_class(name)) for name in tables["delays"]["delay"]]
    makers = int(tables["herd_makers"]["timers"].sum())
    return {
        "rows": report.facts["rows"],
        "first_uses": report.facts["slots"]["first_uses"],
        "pending": report.facts["pending_max"],
        "minutes": late_by(tables["minutes"], minutes),
        "workers": late_by(tables["workers"], tables["workers"]["worker"]),
        "delays": late_by(tables["delays"], classes),
        "candidates": candidates(report),
        "herds": [*tables["herds"]["timers"].tolist(), makers],
    }


def delay_class(name: str) -> int:
    from wheeld_pipeline.report.counts import bins

    return bins.DELAY_NAMES.index(name)


def late_by(table: Any, keys: Any) -> dict[str, list[float | None]]:
    found = {}
    for key, row in zip(keys, table.to_dict("records"), strict=True):
        values = [int(row[name]) for name in ("scheduled", "expired", "cancelled")]
        late = [row[name] for name in ("p50", "p90", "p99", "p999")]
        found[str(key)] = values + [each for each in late if each == each and each is not None]
    return found


def candidates(report: Any) -> list[tuple[int, int, int, int]]:
    table = report.tables["candidates"]
    finest = int(table["tick_us"].min())
    columns = (table[name].astype(int) for name in ("tick_us", "wheel_size", "wakes", "cascades"))
    return [
        ((tick // finest).bit_length() - 1, size.bit_length() - 1, wakes, cascades)
        for tick, size, wakes, cascades in zip(*(map(int, c) for c in columns), strict=True)
    ]


def duck_run(trace: Path, cores: int, step: int) -> dict[str, Any]:
    from bench.pipeline.duck import Duck
    from wheeld_pipeline.report.counts import wheels

    begin = time.monotonic()
    answers = Duck(trace, cores, wheels.candidates(), step).answers()
    return {"report_s": time.monotonic() - begin, "answers": answers}


def measured(arguments: list[str]) -> dict[str, Any]:
    """Run this file as a child, watch its memory, return what it says."""
    with tempfile.NamedTemporaryFile(suffix=".json") as said:
        begin = time.monotonic()
        command = [sys.executable, "-m", "bench.pipeline.report", "--child", said.name, *arguments]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
        peaks = {"java": 0, "python": 0}
        cpu: dict[int, float] = {}
        while child.poll() is None:
            for kind, size in resident(child.pid, cpu).items():
                peaks[kind] = max(peaks[kind], size)
            time.sleep(SAMPLE_SECONDS)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)}: exit {child.returncode}; its output is above")
        found: dict[str, Any] = json.loads(Path(said.name).read_text())
    return found | {
        "whole_s": time.monotonic() - begin,
        "cpu_s": sum(cpu.values()),
        "peak_java_bytes": peaks["java"],
        "peak_python_bytes": peaks["python"],
    }


def resident(pid: int, cpu: dict[int, float]) -> dict[str, int]:
    """Memory of a process and its children, Java apart; their CPU time goes into `cpu`."""
    sums = {"java": 0, "python": 0}
    try:
        whole = psutil.Process(pid)
        for process in [whole, *whole.children(recursive=True)]:
            kind = "java" if "java" in process.name() else "python"
            sums[kind] += process.memory_info().rss
            times = process.cpu_times()
            cpu[process.pid] = times.user + times.system
    except psutil.Error:  # it ended just now
        pass
    return sums


def compare(rows: int, trace: Path | None, cores: int, rounds: int, where: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-", dir=where.resolve()) as scratch:
        if trace is None:
            shared_say(f"making a trace of {rows:,} rows")
            trace = Maker(Path(scratch) / "trace", rows, max(rows * HOURS_PER_ROW, 0.02)).make()
        out = Path(scratch) / "report"
        sparks, ducks = [], []
        for round_ in range(rounds):
            shared_say(f"Spark, round {round_ + 1} of {rounds}")
            sparks.append(measured(["spark", str(trace.resolve()), str(out), str(cores)]))
            shared_say("DuckDB")
            step = str(sparks[-1]["step_seconds"])
            ducks.append(measured(["duckdb", str(trace.resolve()), str(cores), step]))
        size = sum(file.stat().st_size for file in trace.rglob("*.parquet"))
    best, duck = (min(runs, key=lambda run: run["whole_s"]) for runs in (sparks, ducks))
    same = {key: best["answers"][key] == duck["answers"][key] for key in duck["answers"]}
    count = best["answers"]["rows"]
    for run in (*sparks, *ducks):
        run.pop("answers")
    return {
        "rows": count,
        "trace_bytes": size,
        "spark": best,
        "duckdb": duck,
        "spark_rows_per_s": count / best["whole_s"],
        "duckdb_rows_per_s": count / duck["whole_s"],
        "spark_over_duckdb_time": best["whole_s"] / duck["whole_s"],
        "equal": same,
    }


def shared_say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def line(found: dict[str, Any]) -> dict[str, Any]:
    spark, duck = found["spark"], found["duckdb"]
    return {
        "rows": found["rows"],
        "spark s": spark["whole_s"],
        "of it start": spark["start_s"],
        "cpu s": spark["cpu_s"],
        "M rows/s": found["spark_rows_per_s"] / 1e6,
        "JVM MB": spark["peak_java_bytes"] / 2**20,
        "python MB": spark["peak_python_bytes"] / 2**20,
        "duckdb s": duck["whole_s"],
        "cpu s ": duck["cpu_s"],
        "duckdb MB": duck["peak_python_bytes"] / 2**20,
        "spark/duckdb": found["spark_over_duckdb_time"],
        "equal": "yes" if all(found["equal"].values()) else "NO",
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline.report", description=__doc__)
    parser.add_argument("--rows", default="1000000,10000000,100000000", metavar="N[,N...]")
    parser.add_argument("--trace", type=Path, help="measure this one instead")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="the best counts")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    return parser.parse_args()


def child(arguments: list[str]) -> None:
    said, kind, *given = arguments
    if kind == "spark":
        found = spark_run(Path(given[0]), Path(given[1]), int(given[2]))
    else:
        found = duck_run(Path(given[0]), int(given[1]), int(given[2]))
    Path(said).write_text(json.dumps(found))


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return 0
    options = parse()
    try:
        versions = {name: metadata.version(name) for name in ("pyspark", "duckdb", "pyarrow")}
    except metadata.PackageNotFoundError as error:
        print(f"{error.name} is missing: pip install --group bench '.[spark]'", file=sys.stderr)
        return 2
    facts = shared.machine() | versions
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    given = options.rows.replace("_", "").split(",")
    sizes = [0] if options.trace else [int(each) for each in given]
    found = [
        compare(rows, options.trace, options.cores, options.rounds, options.scratch)
        for rows in sizes
    ]
    print(shared.table([line(each) for each in found]))
    largest = found[-1]
    targets = [
        shared.Target(
            "report, rows per second, whole command",
            largest["spark_rows_per_s"],
            TARGET_ROWS_PER_SECOND,
            at_least=True,
        ),
        shared.Target(
            "peak memory of the JVM", largest["spark"]["peak_java_bytes"], TARGET_DRIVER_BYTES
        ),
    ]
    for target in targets:
        print(target.line())
    pays = next((each["rows"] for each in found if each["spark_over_duckdb_time"] < 1), None)
    if pays:
        print(f"Spark is faster than DuckDB from {pays:,} rows on")
    else:
        print("DuckDB was faster at every size")
    content = {"machine": facts, "load_after": os.getloadavg()[0], "sizes": found}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(all(each["equal"].values()) for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
