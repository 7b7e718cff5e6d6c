"""The control socket: who waits at it, what they say, in which order they are heard."""
