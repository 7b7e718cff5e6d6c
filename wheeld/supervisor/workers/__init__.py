"""The workers of a daemon: their handshake, their connections, what those that went have left."""
