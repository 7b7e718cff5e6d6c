"""wheeld in web frameworks and task queues: one module for each, named after it.

A program imports only the modules that it uses, and each imports only its own framework, so the
program needs no further packages.
"""
