"""The command `wheeld`: what it takes, what it prints, and its exit codes."""
