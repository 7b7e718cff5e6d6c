"""Benchmarks of wheeld and its rivals, through one interface and in one run: `python -m bench`."""
