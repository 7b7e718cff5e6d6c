"""Read requests from sockets into a pool's memory, and no more than fits."""
