"""The pipeline's error, with a message for its user."""

from __future__ import annotations

from wheeld_client import WheelError


class PipelineError(WheelError):
    """A request that cannot be carried out: the message says what was got, what was expected and
    what to try, and names the file, the column or the host."""


class UsageError(PipelineError):
    """An option of a command has a value that it cannot have."""
