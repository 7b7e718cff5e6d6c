"""The resources of the machine that a daemon occupies: segments, FIFOs, files; and what an earlier
one left."""
