"""Details of the clock's loop that no other test can see; `make mutants` holds them in place."""

import array
import fcntl
import os
import termios
import threading
import time

from local_wheel import LocalWheel

BELL_BYTES = 512
"""The clock takes so much out of its FIFO at once, and reads again when it got so much."""


def bytes_in(fd: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def test_the_doorbell_is_emptied_before_the_next_sleep_begins() -> None:
    """A byte of the new sleep must stay: its worker does not ring again in it.

    The FIFO is a pipe that blocks, with just so many bytes that the clock reads once more: it
    stands in the middle of emptying it, and must not have moved sleep_seq on yet.
    """
    bell, ring = os.pipe()
    control, ask = os.pipe()
    clock_set, _ = never = os.pipe()
    with LocalWheel(64) as wheel:
        before = wheel.counter("sleep_seq")
        os.write(ring, bytes(BELL_BYTES))
        loop = threading.Thread(target=wheel.clock.run, args=(bell, control, clock_set))
        loop.start()
        try:
            give_up = time.monotonic() + 60
            while bytes_in(bell) and time.monotonic() < give_up:
                time.sleep(0.001)
            assert bytes_in(bell) == 0
            assert wheel.counter("sleep_seq") == before
        finally:
            os.write(ask, b"!")
            os.write(ring, b"!")
            loop.join()
        assert wheel.counter("sleep_seq") > before
    for fd in (bell, ring, control, ask, *never):
        os.close(fd)


def test_a_new_clock_knows_what_time_it_is() -> None:
    with LocalWheel(64) as wheel:
        wheel.view.header["virtual_clock"] = 0
        timers = wheel.worker()
        timers.schedule_at(time.monotonic() + 1000)
        timers.schedule_at(time.time() + 1000, clock="realtime")
        wheel.restart_clock()
        monotonic, realtime = (int(wheel.view.links["list"][slot]) for slot in (0, 1))
        assert abs(monotonic - realtime) <= 1  # a bucket, or its neighbour
