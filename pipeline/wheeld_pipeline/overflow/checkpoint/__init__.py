"""The durable state: files of the checkpoint, and the log of each shard."""
