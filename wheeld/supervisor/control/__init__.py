"""The control socket: its connections, their messages, and the order in which they are served."""
