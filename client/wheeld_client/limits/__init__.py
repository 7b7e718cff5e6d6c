"""Limits: how much all workers of a daemon together may take in a period."""
