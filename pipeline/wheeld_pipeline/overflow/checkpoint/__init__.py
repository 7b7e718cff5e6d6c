"""What is durable: files of the checkpoint, and the log of each shard."""
