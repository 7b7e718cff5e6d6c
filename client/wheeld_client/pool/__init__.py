"""Memory that is bounded over all processes."""
