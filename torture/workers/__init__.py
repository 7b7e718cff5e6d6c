"""The workers of a round: what they do, what they note of it, and how they are started."""
