"""`wheeld demo`: one million requests against an embedded daemon, each accounted for.

workload       makes the requests (or requests_file reads them); pure, deterministic
worker         a worker process: a replay of its share, by `wheeld_client.replay`
account        puts the workers' logs together and checks every request; pure
summary        figures of a checked account; pure
case_text      the figures of a case for people
plots          a picture of them
case           one case, from requests to figures
pipeline       the report that Spark makes of what the daemons recorded
command        options, the order of all that, exit codes
"""
