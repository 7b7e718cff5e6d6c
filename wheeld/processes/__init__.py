"""Processes as the kernel knows them: start, identity, signals, limits, ends."""
