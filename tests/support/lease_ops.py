"""Shared by several tests of leases."""

import mmap

from wheeld_core.views import record


def tickets(keys: mmap.mmap) -> int:
    """Given to those who wait for leases, so far."""
    offset = int(record(keys, "keys")["leases_off"])
    return int(record(keys, "leases", offset)["tickets"])


def waiting(keys: mmap.mmap) -> bool:
    """Whether any worker says that it waits for one."""
    offset = int(record(keys, "keys")["leases_off"])
    return bool(record(keys, "leases", offset)["waiting"].any())
