"""Timers for asyncio."""
