"""`python -m bench.serve CASE [--quick]`: a case of `bench.against` in a process of its own.

It sets up, prints `ready`, and for each line of its input measures one round, which it prints as
JSON. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial

from bench.cases import Case, callbacks, calls, firing, loops, pairs, pool, sparse
from bench.contenders import Wheel

CASES: dict[str, dict[str, Case]] = {
    "calls": {
        "fresh slots": partial(calls.single, Wheel, False),
        "scattered slots": partial(calls.single, Wheel, True),
        "batches": calls.several,
    },
    "firing": {"": firing.wheeld},
    "sparse": {
        "10,000 per second": sparse.wheeld,
        "at a tick of 0.1 ms": sparse.wheeld_fine,
        "500 per second": sparse.wheeld_few,
    },
    "callbacks": {"": callbacks.wheeld},
    "asyncio": {"asyncio": loops.on_asyncio, "uvloop": loops.on_uvloop},
    "purgatory": {"": pairs.wheeld},
    "pool": {"": pool.wheeld},
}
"""Name -> variants, by their names."""


def main() -> None:
    """Entry point."""
    name, variant, *quick = sys.argv[1:]
    with closing(CASES[name][variant](bool(quick))) as samples:
        next(samples)  # it makes what it needs, and warms up
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(next(samples)), flush=True)


if __name__ == "__main__":
    main()
