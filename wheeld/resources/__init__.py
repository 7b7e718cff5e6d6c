"""What a daemon occupies on the machine: segments, FIFOs, files; and what an earlier one left."""
