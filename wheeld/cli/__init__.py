"""The command `wheeld`: its options, its output, and its exit codes."""
