"""This process as one of a daemon's workers: it connects, reconnects, and leaves."""
