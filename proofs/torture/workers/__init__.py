"""The workers of a round: their calls, their ledgers, and how they are started."""
