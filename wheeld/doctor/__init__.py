"""`wheeld doctor`: checks whether this machine is fit for timers, and the daemon healthy."""
