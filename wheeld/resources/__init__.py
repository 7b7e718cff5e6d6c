"""The resources that a daemon occupies on the machine: segments, FIFOs, files; and the remains of
earlier daemons."""
