"""Shared by the tests of fsck."""

from collections.abc import Iterator

import pytest

from fsck_wheels import FullWheel


@pytest.fixture
def wheel() -> Iterator[FullWheel]:
    with FullWheel() as wheel:
        yield wheel
