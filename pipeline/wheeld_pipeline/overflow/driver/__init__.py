"""The work of Spark's driver: reads commands, runs batches, decides which attempts count."""
