"""The recorder: what `wheeld start --trace DIR` adds to a daemon.

    segment      the trace segment: made, or gone on with
    directory    the directory of a trace, checked
    guard        the supervisor's side: keeps a recorder process running
    recorder     that process: its loop
    intake       ring -> spool
    spool        the spool's files
    facts        what records do not say themselves: names, hosts, offsets of clocks
    counters     the daemon's counters, a row a second
    converter    its second thread: spool -> Parquet, and retention
    parquet      files that appear by rename
    columns      records -> columns
    retention    old files go

Only the recorder loads pyarrow: `columns`, `parquet` and `converter` are for its process alone.
"""
