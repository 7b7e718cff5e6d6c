"""The account of a round: what its workers have noted, and what must have become of each timer."""
