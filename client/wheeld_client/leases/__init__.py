"""Leases: at most one worker of a host holds each."""
