"""What a report counts: a trace read once, in this process or by Spark, and other wheels tried."""
