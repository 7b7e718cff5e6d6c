"""The supervisor: control socket, workers, the daemon's life from start to end."""
