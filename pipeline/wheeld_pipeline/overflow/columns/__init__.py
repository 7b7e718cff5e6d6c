"""One shard's rows on this host: memory-mapped columns, the index over their keys, deltas."""
