"""`wheeld demo`: one million requests against an embedded daemon, each accounted for.

workload       makes the requests (or requests_file reads them); pure, deterministic
worker         a worker process: a replay of its share, by `wheeld_client.replay`
case           one case: daemon, workers, their account, its figures for people
plots          a picture of them
pipeline       the report that Spark makes of what the daemons recorded
command        options, the order of all that, exit codes
"""
