"""The cost of `Intake` for each small request: `python -m bench.intake [--quick] [--json FILE]`.

CPU time of the serving process, the kernel's part included, beside that of a bare
`BufferedProtocol` that frames and does nothing else: no bound on memory, no timeouts, no order, no
muting. All servers stand side by side and are asked in turns; the asking side is this process.
`--beside CHECKOUT` has the Intake of another built checkout in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import result as results
from bench.result import Result, Row, Target

ROOT: Final = Path(__file__).resolve().parent.parent
CONNECTIONS: Final = 8
SIZE: Final = 100
"""Bytes of a request, and of its answer."""
LOADS: Final = {"one at a time": 1, "16 at a time": 16}
"""Requests of one connection that are on their way together."""
MOST: Final = (2.0, 2.5)
"""Times what the bare protocol costs, by load."""


class Server:
    """A server in a process of its own, and connections to it."""

    def __init__(self, kind: str, loop: str, checkout: Path = ROOT) -> None:
        paths = [checkout / part for part in (".", "core", "client", "pipeline")]
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "bench" / "intake_servers.py", kind, loop],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server {kind} of {checkout} did not start")
        address = ("127.0.0.1", int(line))
        self._peers = [socket.create_connection(address) for _ in range(CONNECTIONS)]
        self._clock = (~self._process.pid << 3) | 2  # its CPU time: clock_getcpuclockid(3)

    def ask(self, together: int, rounds: int) -> float:
        frame = SIZE.to_bytes(4, "big") + bytes(SIZE)
        sent = frame * together
        before = time.clock_gettime(self._clock)
        for _ in range(rounds):
            for peer in self._peers:
                peer.sendall(sent)
            for peer in self._peers:
                if peer.recv(len(sent), socket.MSG_WAITALL) != sent:
                    raise RuntimeError("a server gave a wrong answer")
        used = time.clock_gettime(self._clock) - before
        return 1e6 * used / (rounds * together * CONNECTIONS)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(requests: int, rounds: int, beside: Path | None) -> Result:
    kinds: dict[str, tuple[str, Path]] = {"intake": ("intake", ROOT), "bare": ("bare", ROOT)}
    if beside is not None:
        kinds["beside"] = ("intake", beside)
    found: dict[tuple[str, str, str], list[float]] = {}
    with ExitStack() as stack:
        servers = {}
        for loop in ("asyncio", "uvloop"):
            for who, (kind, checkout) in kinds.items():
                server = servers[who, loop] = Server(kind, loop, checkout)
                stack.callback(server.close)
        for turn in range(rounds + 1):
            print(f"intake: round {turn} of {rounds}", file=sys.stderr, flush=True)
            for load, together in LOADS.items():
                for (who, loop), server in servers.items():
                    cost = server.ask(together, max(1, requests // (together * CONNECTIONS)))
                    if turn:  # the first one warms up
                        found.setdefault((load, loop, who), []).append(cost)
    rows = [
        _row(load, loop, list(kinds), found) for loop in ("asyncio", "uvloop") for load in LOADS
    ]
    targets = [
        Target(f"intake / bare, {row['loop']}, {row['requests']}", row["intake/bare"], most)
        for row, most in zip(rows, MOST * 2, strict=True)
    ]
    notes = [f"{CONNECTIONS} connections; {SIZE} bytes each way; medians of {rounds} rounds"]
    return Result("CPU time of the server for each request, us", rows, targets, notes)


def _row(
    load: str, loop: str, kinds: list[str], found: dict[tuple[str, str, str], list[float]]
) -> Row:
    row: Row = {"loop": loop, "requests": load}
    costs = {who: found[load, loop, who] for who in kinds}
    for who, values in costs.items():
        row[f"{who} us"] = median(values)
        row[f"{who} least"] = min(values)
    for other in kinds[1:]:
        pairs = zip(costs["intake"], costs[other], strict=True)
        row[f"intake/{other}"] = median(ours / theirs for ours, theirs in pairs)
    return row


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.intake", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="a built one")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    facts = results.machine()
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    # Fewer may take no time at all: the kernel's account of a running process is a tick behind.
    rounds, requests = (2, 2_048) if given.quick else (given.rounds, 16_000)
    begin = time.monotonic()
    result = measure(requests, rounds, given.beside and given.beside.resolve())
    result.seconds = time.monotonic() - begin
    print(results.show(result))
    if given.json is not None:
        content: dict[str, Any] = {"machine": facts, "intake": result.as_json()}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
