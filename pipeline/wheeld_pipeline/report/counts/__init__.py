"""The counts of a report: from one scan of a trace, in this process or by Spark, and from replays
on other wheels."""
