"""A process that may open nothing more."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # not 0: other threads of this process may poll, and poll() takes no more entries than that
    next_one = os.dup(0)
    os.close(next_one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
