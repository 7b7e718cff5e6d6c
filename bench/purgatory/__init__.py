"""The purgatory's experiment: old design and new one under one workload, in one run."""
