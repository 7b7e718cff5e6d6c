"""The command `wheeld`, as a script and as `python -m wheeld`."""

import errno
import functools
import gc
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from typing import Final

from wheeld.processes import descriptors, inherited, spawn

_EXTRA: Final = ("typer", "rich", "psutil")
"""The packages of the extra `daemon`."""
_HELP: Final = {"-h", "--help"}
_WITHOUT_CLOCK: Final = {*_HELP, "--check"}


def main() -> None:
    """Run it.

    This process and its children do no linear algebra. Unless the environment says otherwise,
    numpy's library for that is told to start no threads; by default it starts one per processor.
    Loaded modules stay loaded, so the garbage collector skips them.
    """
    inherited.set_right()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names and keys may have any letter
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] in ([spawn.PRIVATE], ["start"]):
        inherited.leave_process_one()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    run = _private_daemon() if sys.argv[1:2] == [spawn.PRIVATE] else _command()
    gc.freeze()
    if sys.argv[1:2] in ([spawn.PRIVATE], ["start"]) and not _WITHOUT_CLOCK.intersection(sys.argv):
        _start_clock()
    gc.enable()
    try:
        run()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"wheeld: the output cannot be written: {error.strerror}")
    finally:
        spawn.end_unused()


def _private_daemon() -> Callable[[], None]:
    from wheeld.supervisor import launch  # loads numpy

    return launch.main


def _command() -> Callable[[], None]:
    for name in _EXTRA:
        if importlib.util.find_spec(name) is None:
            from wheeld_core import extras

            sys.exit(
                f"wheeld: {name} is not installed, only the client is; for the daemon and its "
                f"commands: {extras.command('daemon')}"
            )
    help_only = "_WHEELD_COMPLETE" in os.environ or _HELP.intersection(sys.argv)
    if sys.argv[1:2] == ["start"] and not help_only:
        from wheeld.supervisor import launch  # loads numpy

        return functools.partial(launch.start, sys.argv[2:])
    from wheeld.cli.app import app  # as well, and all commands

    return functools.partial(app, prog_name="wheeld")


def _start_clock() -> None:
    """Fork the clock process, which shares what the supervisor has loaded."""
    from wheeld.clock import process  # loads numpy

    descriptors.take_all()
    spawn.fork_ahead(spawn.CLOCK, process.main)


if __name__ == "__main__":
    main()
