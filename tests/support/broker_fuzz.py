"""Requests that kio has encoded and that were bent then, against a running broker.

    python tests/support/broker_fuzz.py --minutes 10 [--seed N]

Each frame has a connection of its own. It is answered in its schema or with an error, or its
connection ends and the broker has logged why, or the broker waits for more of it; meanwhile others
are served. At the end none of the pool's memory is out, and no process has died.
"""

from __future__ import annotations

import argparse
import io
import select
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings, strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import Records

import wheeld
from broker_outside import API_VERSIONS, Outside, batch, decoded, frame, receive, started
from broker_runs import until
from wheeld_client import MemoryPool, connect

PATIENCE = 0.02
"""Seconds after which a frame without an answer waits for something."""
POOL = "requests=16M"

st.register_type_strategy(Records, st.one_of(st.binary(), st.just(batch(b"value"))))


def served(run: Outside) -> dict[int, tuple[int, int]]:
    """What the broker says that it knows: versions of each API."""
    with run.connected() as peer:
        peer.sendall(frame(API_VERSIONS, 0))
        _, body = decoded(API_VERSIONS, 0, receive(peer))
    return {int(one.api_key): (one.min_version, one.max_version) for one in body.api_keys}


@st.composite
def bent(draw: st.DrawFn, apis: dict[int, tuple[int, int]]) -> tuple[int, int, bytes, str]:
    """API, version, a frame, and what was done to it."""
    api = draw(st.sampled_from(sorted(apis)))
    version = draw(st.integers(*apis[api]))
    schema, out = load_request_schema(api, version), io.BytesIO()
    names = {"request_api_key": api, "request_api_version": version, "correlation_id": 1}
    head = schema.__header_schema__
    if "client_id" in head.__dataclass_fields__:
        names["client_id"] = draw(st.text(max_size=5))
    entity_writer(head)(out, head(**names))
    entity_writer(schema)(out, draw(st.from_type(schema)))
    raw = bytearray(out.getvalue())
    length = len(raw)
    how = draw(st.sampled_from(["whole", "flip", "cut", "lengthen", "inner length", "length"]))
    for _ in range(0 if how == "whole" else draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw) - 1))
        if how == "flip":
            raw[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del raw[max(at, 1) : at + draw(st.integers(1, 20))]
        elif how == "lengthen":
            raw[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif how == "inner length":
            size, form = draw(st.sampled_from([(2, ">H"), (4, ">I"), (5, "")]))
            huge = draw(st.integers(0, 2 ** (8 * size) - 1)) if form else 0
            raw[at : at + size] = struct.pack(form, huge) if form else b"\xff\xff\xff\xff\x0f"
    length = len(raw)
    if how == "length":
        length = draw(st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2 * len(raw))))
    return api, version, struct.pack(">i", length) + raw, how


class Fuzz:
    """What was sent, and what became of it."""

    def __init__(self, run: Outside) -> None:
        self.run, self.apis = run, served(run)
        self.counts: Counter[str] = Counter()
        self._closed: list[tuple[int, str]] = []
        self._other = run.connected()

    def send(self, drawn: tuple[int, int, bytes, str]) -> None:
        """One frame."""
        api, version, raw, how = drawn
        self.counts["frames"] += 1
        with self.run.connected() as peer:
            peer.sendall(raw)
            if not select.select([peer], [], [], PATIENCE)[0]:
                self.counts["waits"] += 1
            elif (answer := receive(peer)) is None:
                self.counts["closed"] += 1
                self._closed.append((peer.getsockname()[1], repr(drawn)))
            else:
                self.counts["answered"] += 1
                if how == "whole":
                    header, _ = decoded(api, version, answer)
                    assert header.correlation_id == 1
        if self.counts["frames"] % 50 == 0:
            self.look()

    def look(self) -> None:
        """Others are served, and the log says why each connection ended."""
        self._other.sendall(frame(API_VERSIONS, 0))
        _, body = decoded(API_VERSIONS, 0, receive(self._other))
        assert body.error_code is ErrorCode.none
        closed, self._closed = self._closed, []
        said = self.run.said()
        for port, what in closed:
            assert f", {port})" in said, f"closed without a word: {what}"
        assert "handler failed" not in said, said[said.index("handler failed") :][:3000]

    def close(self) -> None:
        """No more is sent."""
        self.look()
        self._other.close()


def check_after(run: Outside, daemon: wheeld.EmbeddedDaemon, workers: list[int]) -> int:
    """The same workers are there, and nothing of the pool is out; returns their bytes."""
    assert [one.pid for one in run.workers()] == workers
    with connect(str(daemon)) as timers:
        pool = MemoryPool(timers, "requests")
        until(lambda: pool.available == pool.size, "all memory is back")
    return sum(one.memory_info().rss for one in run.workers())


def fuzzed(directory: Path, fuzz: Any) -> tuple[Counter[str], int, int]:
    """Run `fuzz(Fuzz)` on a broker of its own; counts, and the workers' bytes before and after."""
    with (
        wheeld.embedded(capacity=1 << 16, payload_bytes=256, pools=[POOL]) as daemon,
        started(directory, "--name", str(daemon)) as run,
    ):
        workers = [one.pid for one in run.workers()]
        before = check_after(run, daemon, workers)
        one = Fuzz(run)
        try:
            fuzz(one)
        finally:
            one.close()
        return one.counts, before, check_after(run, daemon, workers)


def examples(one: Fuzz, count: int, chosen: int | None = None) -> None:
    """Send so many frames; Hypothesis makes the one that fails small."""

    @settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=count)
    @given(bent(one.apis))
    def send(drawn: tuple[int, int, bytes, str]) -> None:
        one.send(drawn)

    (seed(chosen)(send) if chosen is not None else send)()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given_ = parser.parse_args()

    def rounds(one: Fuzz) -> None:
        end, number = time.monotonic() + 60 * given_.minutes, given_.seed
        while time.monotonic() < end:
            examples(one, 1000, number)
            number += 1
            print(f"seed {number}: {dict(one.counts)}", flush=True)

    with tempfile.TemporaryDirectory(prefix="broker-fuzz-") as directory:
        counts, before, after = fuzzed(Path(directory), rounds)
    print(f"{dict(counts)}; workers had {before >> 20} MiB, have {after >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
