"""Shared by wheeld's daemon and its clients: memory layout, native core, segments, errors.

This package knows neither side. Start with `shm_layout.md` at the top of the repository.
"""
