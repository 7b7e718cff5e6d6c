"""Netty's `HashedWheelTimer`, threads of one JVM: Netty.java, and the jar that PySpark brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.cases import Sample, firing, servers

SOURCE = Path(__file__).with_name("Netty.java")


def _rounds(*arguments: str) -> Iterator[dict[str, float]]:
    with servers.java(SOURCE, *arguments) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"Netty.java ended with {process.wait()}")
        while True:
            process.stdin.write("\n")
            process.stdin.flush()
            words = (word.partition("=") for word in process.stdout.readline().split())
            yield {name: float(value) for name, _, value in words}


def fire(quick: bool) -> Iterator[Sample]:
    """As `firing.wheeld`: CPU time of all threads."""
    count, seconds = (50_000, 0.5) if quick else (1_000_000, firing.SPREAD_SECONDS)
    for found in _rounds("fire", str(count), str(int(1000 * seconds))):
        yield {
            "together, ns": found["cpu"],
            "late p50, us": found["p50"],
            "late p99, us": found["p99"],
        }


def add(quick: bool) -> Iterator[Sample]:
    """As `adders.wheeld`: threads instead of processes, one by one."""
    for found in _rounds("add", "20000" if quick else "200000", "0"):
        yield {f"{number} one by one, ns": found[number] for number in ("one", "two", "three")}
