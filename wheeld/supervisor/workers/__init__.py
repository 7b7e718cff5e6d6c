"""The workers of a daemon: handshake, connections, and what departed ones left."""
