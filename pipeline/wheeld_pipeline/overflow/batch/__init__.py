"""What a task does to one shard in one batch."""
