"""The clock process, and the supervisor's end of it."""
