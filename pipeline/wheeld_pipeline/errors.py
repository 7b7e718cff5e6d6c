"""What goes wrong in the pipeline, in words for its user."""

from __future__ import annotations

from wheeld_client import WheelError


class PipelineError(WheelError):
    """The pipeline cannot do what was asked: the message has what was got, what was expected and
    what to try, and names the file, the column or the host."""
