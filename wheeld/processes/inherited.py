"""Undoes what a process inherits from its parent and cannot work with."""

from __future__ import annotations

import contextlib
import os
import signal


def set_right() -> None:
    """Open the standard descriptors, have the kernel keep the exit codes of children, and set an
    umask under which this user can use its own files.

    If a descriptor from 0 to 2 were closed, a file opened later would get its number, and messages
    of this process and its children would be written into it. Where SIGCHLD is ignored, which
    survives an exec, the kernel forgets a child at its end: nobody can wait for it, and another
    process may get its process id at once. Under a umask such as 0777 nobody, not even this user,
    could enter the new directories or open the new files.
    """
    os.umask(os.umask(0o077) & 0o077)
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def leave_process_one() -> None:
    """If this is process 1 of a container without an init, continue in a child.

    The kernel gives every orphan to process 1, which has to wait for it. Process 1 does only that:
    it forwards signals to the child, and ends when the child ends, in the same way.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if not (child := os.fork()):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:  # first those that ended before the signals were blocked
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    os._exit(code if code >= 0 else 128 - code)
        if (number := signal.sigwait(signal.valid_signals())) != signal.SIGCHLD:
            os.kill(child, number)  # not waited for yet, so the number is the child's
