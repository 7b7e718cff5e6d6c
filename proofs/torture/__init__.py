"""Fault injection under load: `python -m proofs.torture`, or `make torture`.

ledger    what each worker writes down, in memory that no fault can take away; who sits where
worker    one worker process: a random mix of all calls, noted before and after
common    its calls about timers that are everybody's: by key, by others' ids, held, given back
crew      lives and deaths of the workers
daemon    the daemon under test: start, kill, restart, outages
drive     a daemon and its crew, kept going while faults are injected
faults    the table of faults and how each is injected
history   all ledgers of a round as one array, and what can be read off it
account   the verdict; says which outcomes are right
sharing   a worker that runs jobs, and has leases and limits
sharing_account  the account of what the sharers did
common_book, common_account   the same for the timers of `common`
rounds    a round: load, faults, quiet, account; then the search for leaks
results   tables, histories, JSON
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads and forks do not mix
sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))  # its daemons.py
