"""Leases: each is held by at most one worker of a host."""
