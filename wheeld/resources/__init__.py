"""What a daemon has of the machine: segments, FIFOs, files; and what an earlier one left."""
