"""A worker takes other FIFOs than it had, under the same descriptors: by hand, without a daemon."""

import os
import select

from local_wheel import LocalWheel, doorbell


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_what_nobody_heard_is_rung_again(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    fd = timers.fileno()
    assert not is_readable(fd)
    before = len(os.listdir("/proc/self/fd"))
    clock, own = doorbell(), doorbell()
    timers._hear(clock[1], own[1])
    assert (is_readable(clock[0]), is_readable(fd)) == (True, True)
    assert os.fstat(fd).st_ino == os.fstat(own[0]).st_ino
    assert len(timers.poll(0)) == 0
    assert not is_readable(fd)
    os.read(clock[0], 1)
    timers._hear(clock[1], own[1])
    assert (is_readable(clock[0]), is_readable(fd)) == (False, False), "the same ones"
    for end in (*clock, *own):
        os.close(end)
    assert len(os.listdir("/proc/self/fd")) == before
    assert timers.fileno() == fd


def test_descriptors_that_are_not_its_own_any_more(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    fd = timers.fileno()
    theirs = os.memfd_create("theirs")
    os.dup2(theirs, fd)
    clock, own = doorbell(), doorbell()
    timers._hear(clock[1], own[1])
    assert os.fstat(fd).st_ino == os.fstat(theirs).st_ino
    for end in (*clock, *own, theirs, fd):
        os.close(end)
