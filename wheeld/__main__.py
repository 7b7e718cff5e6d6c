"""The command `wheeld`, as a script and as `python -m wheeld`."""

import gc
import os
import sys

_STARTS = sys.argv[1:2] == ["start"]


def main() -> None:
    """Run it.

    It and the processes that it starts do no linear algebra: numpy's library for that, which starts
    a thread per processor when it is loaded, is told to start none, unless the environment says
    something else. What is loaded stays: the garbage collector need never look at it.
    """
    _open_standard_descriptors()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    if _STARTS and not {"--help", "--check"}.intersection(sys.argv):
        _start_clock()
    from wheeld import cli  # loads numpy

    if not _STARTS:  # a start, which others wait for, loads no other command
        cli.add_others()
    gc.freeze()
    gc.enable()
    cli.app(prog_name="wheeld")


def _start_clock() -> None:
    """The clock loads what it needs while the supervisor does."""
    from wheeld import descriptors, spawn

    descriptors.take_all()
    spawn.ahead(spawn.CLOCK)


def _open_standard_descriptors() -> None:
    """Nothing that is opened later takes the number of stdin, stdout or stderr: messages, also
    those of the processes that it starts, would be written into that."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


if __name__ == "__main__":
    main()
