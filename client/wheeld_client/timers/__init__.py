"""Timers for threads: schedule, cancel, extend, receive, callbacks; and an observer."""
