"""Fault injection under load: `python -m proofs.torture`, or `make torture`.

ledger what each worker writes down, in memory that no fault can take away
crew       seats: their workers' names and policies; lives and deaths
worker     one worker process: a random mix of all calls, noted before and after
spawner    the process that forks the workers, warmed up
daemon     the daemon under test: start, kill, restart, outages
faults     the table of faults and how each is injected
history    all ledgers of a round as one array, and what can be read off it
account    the verdict; says which outcomes are right
ticks      the same for periodic timers
drive      a round: load, faults, quiet, account; then the search for leaks
report     tables, histories, JSON
"""
