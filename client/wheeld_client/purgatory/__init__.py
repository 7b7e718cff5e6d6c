"""Requests that wait for a condition or a timeout, in all processes."""
