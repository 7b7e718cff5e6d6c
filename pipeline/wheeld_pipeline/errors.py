"""The pipeline's error, with a message for its user."""

from __future__ import annotations

import re

from wheeld_client import WheelError
from wheeld_core import errors


class PipelineError(WheelError):
    """A request that cannot be carried out: the message says what was got, what was expected and
    what to try, and names the file, the column or the host."""


class UsageError(PipelineError, errors.UsageError):
    """An option is wrong, or contradicts another one; nothing was done."""


def brief(error: BaseException) -> str:
    """The message of an error, without the stack traces of two languages."""
    classes = re.findall(
        r"\[(?!FOREACH_|PYTHON_EXC|STREAM_FAILED)[A-Z][A-Z0-9_.]{5,}\] .*", str(error)
    )
    if classes:
        return str(classes[-1][:500])
    lines = [line.strip(": \t") for line in str(error).splitlines()]
    lines = [line for line in lines if line and not re.match(r"at |\.\.\. \d+ more", line)]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception|WheelFull)\b", line)]
    return (telling or lines or [repr(error)])[-1][:500]
