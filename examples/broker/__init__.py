"""A small log broker of several processes on wheeld's purgatory, memory pool and Intake.

    python -m examples.broker --help

README.md beside this file is the tour.
"""
