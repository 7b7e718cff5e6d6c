"""Snapshots: pending timers in a file, and a wheel restored from it."""
