"""`wheeld top`: what a daemon does now."""
