"""What Spark's driver does: reads commands, runs batches, decides which attempts count."""
