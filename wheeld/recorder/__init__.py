"""The recorder, which `wheeld start --trace DIR` adds to a daemon.

    guard        the supervisor's side: keeps a recorder process running
    process      that process: its loop
    ring_reader  ring -> spool
    spool        the spool's files
    facts        what records do not say themselves: names, hosts, offsets of clocks
    counters     the daemon's counters, a row a second
    converter    its second thread: spool -> Parquet, and retention
    parquet      files that appear by rename
    columns      records -> columns
    retention    old files go

The trace segment and its directory belong to the daemon's resources: wheeld/resources/trace_*.py.
Only the recorder loads pyarrow: `columns`, `parquet` and `converter` are for its process alone.
"""
