"""Limits: how much may be taken in a time, by all workers of a daemon together."""
