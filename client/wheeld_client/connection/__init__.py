"""This process as one of a daemon's workers: it comes, comes back, and leaves."""
