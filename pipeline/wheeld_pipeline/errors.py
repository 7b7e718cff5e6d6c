"""The pipeline's error, with a message for its user."""

from __future__ import annotations

from wheeld_client import WheelError
from wheeld_core import errors


class PipelineError(WheelError):
    """A request that cannot be carried out: the message says what was got, what was expected and
    what to try, and names the file, the column or the host."""


class UsageError(PipelineError, errors.UsageError):
    """An option is wrong, or contradicts another one; nothing was done."""
