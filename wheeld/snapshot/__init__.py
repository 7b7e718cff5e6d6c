"""Snapshots: pending timers in a file, and a wheel made of one."""
