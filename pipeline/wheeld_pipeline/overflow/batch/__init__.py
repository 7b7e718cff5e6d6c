"""The work of a task on one shard in one batch."""
