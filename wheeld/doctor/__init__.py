"""`wheeld doctor`: is this machine fit for timers, and is the daemon well?"""
