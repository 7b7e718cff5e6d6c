"""A shard of the overflow as a table of SQLite, to compare with its columns: no Spark, no daemon.

python -m bench.pipeline.overflow_sqlite [KEYS]

The commands are those of `overflow_columns`: each key is scheduled for a far day, then moved. A
batch is one transaction, synced. Decision 22 has the figures.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.pipeline.overflow_columns import FAR_US, PER_BATCH

_STRIDE: Final = 7_654_321
"""A prime: keys come in no order, as those of users do."""
_TABLE: Final = """
CREATE TABLE timers (key BLOB PRIMARY KEY, phase INT, generation INT, deadline INT, wake INT,
                     cookie INT, payload BLOB) WITHOUT ROWID;
CREATE INDEX due ON timers (wake);
"""
_SCHEDULE: Final = """
INSERT INTO timers VALUES (?1, 1, ?2, ?3, ?3 / 1000 - 30000, 7, ?4) ON CONFLICT (key) DO UPDATE
SET phase = 1, generation = ?2, deadline = ?3, wake = ?3 / 1000 - 30000, payload = ?4
WHERE ?2 > generation
"""
_MOVE: Final = """
UPDATE timers SET generation = ?2, deadline = ?3, wake = ?3 / 1000 - 30000
WHERE key = ?1 AND ?2 > generation AND phase != 0
"""


def measure(keys: int) -> dict[str, Any]:
    found: dict[str, Any] = {"keys": keys}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        base = sqlite3.connect(Path(folder, "shard"), isolation_level=None)
        base.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + _TABLE)
        base.execute("PRAGMA cache_size = -262144")
        for sequence, (name, said) in enumerate((("schedule", _SCHEDULE), ("reschedule", _MOVE))):
            used = 0.0
            for begin in range(0, keys, PER_BATCH):
                rows: Any = (
                    (b"account-%09d" % (i * _STRIDE % keys), sequence, FAR_US, b"16 bytes of user")
                    for i in range(begin, min(begin + PER_BATCH, keys))
                )
                rows = [row if sequence == 0 else row[:3] for row in rows]
                began = time.process_time()
                base.execute("BEGIN")
                base.executemany(said, rows)
                base.execute("COMMIT")
                used += time.process_time() - began
            found[f"{name}, us of CPU per key"] = used / keys * 1e6
        moved = base.execute("SELECT count(*) FROM timers WHERE generation = 1").fetchone()
        assert moved == (keys,)
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        found["bytes per key"] = Path(folder, "shard").stat().st_size / keys
        base.close()
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000), indent=2))
