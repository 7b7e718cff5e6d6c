"""Named callbacks that any worker of a host runs when they are due, each occurrence once."""
