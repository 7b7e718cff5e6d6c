"""The errors of wheeld, named by what the caller should do about them."""

from __future__ import annotations


class WheelError(Exception):
    """Base of all errors that wheeld raises on purpose."""


class UsageError(WheelError, ValueError):
    """An argument, an option or a file of options is wrong; nothing was done. Commands end with
    exit code 2."""


class WheelFull(WheelError):
    """Every slot is taken: cancel or poll, or start the daemon with a larger capacity."""


class WordsFull(WheelError):
    """There is no room for another shared word: forget keys that are no longer needed."""


class KeysFull(WheelFull):
    """There is no room for another key: cancel timers, or start the daemon with a larger
    capacity."""


class KeyInUse(WheelError, ValueError):
    """The key has a pending timer, and `on_conflict` is "raise".

    Attributes
    ----------
    id : int
        Of that timer.
    """

    id: int


class LeaseLost(WheelError):
    """A lease was not renewed in time: another worker may have held it since."""


class RingFull(WheelError):
    """With `block=False`: the clock has not taken up earlier submissions yet; try again in a
    moment."""


class DaemonNotRunning(WheelError, ConnectionError):
    """There is no daemon of that name, it stopped, or its clock does not run."""


class DaemonBusy(WheelError):
    """Too many connections were open at once for as long as the caller waited: try again later."""


class NameInUse(WheelError, ValueError):
    """Another worker that is connected has this name: use another one."""


class WorkersFull(WheelError):
    """Every row of the table of workers is taken: wait, or start the daemon with a larger
    `--max-workers`."""


class LayoutMismatch(WheelError):
    """The daemon's shared memory has another layout: install the same version on both sides."""


class ForkedClient(WheelError):
    """The client was made before a fork: connect again in the child."""


class ClientClosed(WheelError):
    """The client was closed: connect again."""


class PayloadTooLarge(WheelError, ValueError):
    """The payload is larger than the daemon takes: `wheeld start --max-payload`."""


class PayloadHeapFull(WheelFull):
    """The payloads of all workers fill the heap: `wheeld start --payload-heap`, or a larger
    `/dev/shm`."""


class DetachedFull(WheelFull):
    """The limit of pending detached timers is reached: `wheeld start --detached-capacity`."""


class InvalidDelay(WheelError, ValueError):
    """A delay, interval or time is NaN, infinite or negative."""
