"""A Kafka broker of several Python processes, on wheeld's purgatory, memory pool and Intake.

    python -m examples.broker --help

docs/broker.md is the tour.
"""
