"""Without room, in a process that gevent has patched: one greenlet waits for it, the others go on.

Each program has a wheel of its own, whose clock one of its greenlets moves while another one waits.
"""

import subprocess
import sys

import pytest

from programs import SUPPORT

pytest.importorskip("gevent")
PATIENCE = 60.0
"""Seconds until a program counts as hung; none takes that long."""

BEGINNING = """
from gevent import monkey
monkey.patch_all()
import os, sys, gevent, numpy
sys.path.insert(0, sys.argv[1])
from full_wheels import RING, fill_ring, fill_slots
from local_wheel import LocalWheel
from wheeld_client import ClientClosed, DelayedOperation, ForkedClient, Purgatory
wheel = LocalWheel(4 * RING, 2)
timers = wheel.worker(0)
timers._patience_ns = 60_000_000_000
FAR = 1e6
beats = []
def beat():
    while True:
        beats.append(1)
        gevent.sleep(0)
gevent.spawn(beat)
def goes_on():
    "Everything but who waits."
    before = len(beats)
    while len(beats) < before + 100:
        gevent.sleep(0.001)
def waits(call, *args):
    "A call that waits until the clock is moved."
    waiting = gevent.spawn(call, *args)
    goes_on()
    early = waiting.ready()
    wheel.settle()
    return "early" if early else waiting.get()
class Never(DelayedOperation):
    def try_complete(self): return False
"""

PROGRAMS = {
    "schedule": """
fill_ring(timers)
print(waits(timers.schedule, 1.0) > 0, timers.pending == RING + 1)
""",
    "cancel": """
id = fill_ring(timers)[0]
print(waits(timers.cancel, id), timers.pending == RING - 1)
""",
    "reschedule": """
id = fill_ring(timers)[0]
print(waits(timers.reschedule, id, 1.0))
""",
    "call_later": """
called = []
fill_ring(timers)
handle = waits(timers.call_later, 0.0, called.append, 7)
wheel.settle()
timers.dispatch()
print(called)
""",
    "operation": """
fill_ring(timers)
with Purgatory(timers, "p") as purgatory:
    op = Never(1.0)
    print(waits(purgatory.try_complete_else_watch, op, ["k"]), timers.pending == RING + 1)
    op.cancel()
""",
    "batch": """
fill_ring(timers)
waiting = gevent.spawn(timers.schedule_many, [FAR] * (2 * RING))
while not waiting.ready():
    goes_on()
    wheel.settle()
print(len(waiting.get()) == 2 * RING, timers.pending == 3 * RING)
""",
    "slots": """
ids = fill_slots(timers, wheel.settle)
timers.cancel(ids[0])
print(waits(timers.schedule, 1.0) > 0, timers.pending == 4 * RING)
""",
    "given up": """
fill_ring(timers)
try:
    with gevent.Timeout(0.01, ZeroDivisionError):
        timers.schedule(1.0)
except ZeroDivisionError:
    print(timers.pending == RING)
wheel.settle()
print(len(fill_slots(timers, wheel.settle, RING)) == 3 * RING)
""",
    "closed": """
fill_ring(timers)
waiting = gevent.spawn(timers.schedule, 1.0)
goes_on()
timers.close()
try:
    waiting.get()
except ClientClosed:
    print("closed")
""",
    "in the hub": """
fill_ring(timers)
def nap(seconds, nap=timers._nap_in_hub):
    print("nap", nap(seconds))
    wheel.settle()
    return False
timers._nap_in_hub = nap
gevent.get_hub().loop.run_callback(lambda: print("hub", timers.schedule(1.0) > 0))
goes_on()
""",
    "fork": """
def refork():
    # as connect(after_fork="reconnect") does: the child's worker is another one
    wheel.worker(1)
    shared = wheel.wheel_memory, wheel.slots_memory, wheel.registry_memory
    it = wheel.worker_memories[1], wheel.keys_memory, 1, int(wheel.row(1)["incarnation"])
    bells = wheel.clock_bell[1], wheel.bells[1][0], -1
    timers._bind(*shared, *it, *bells, wheel.dtype, numpy.empty)
fill_ring(timers)
waiting = gevent.spawn(timers.schedule_many, [1.0] * 10)
goes_on()
reader, writer = os.pipe()
if os.fork() == 0:
    try:
        refork()
        owners = wheel.slots.owners.copy()
        try:
            waiting.get()
        except ForkedClient as error:
            said = "forked" if (wheel.slots.owners == owners).all() else "touched"
            said += f" {timers.pending} {timers.schedule(1.0, block=False) > 0}"
        os.write(writer, said.encode())
    finally:
        os._exit(0)
print(os.read(reader, 100).decode())
wheel.settle()
print(len(waiting.get()))
""",
}
SAYS = {
    "schedule": "True True",
    "cancel": "True True",
    "reschedule": "True",
    "call_later": "[7]",
    "operation": "False True",
    "batch": "True True",
    "slots": "True True",
    "given up": "True True",
    "closed": "closed",
    "in the hub": "nap False hub True",
    "fork": "forked 0 True 10",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_others_go_on(name: str) -> None:
    here = str(SUPPORT)
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + PROGRAMS[name] + "\nsys.exit(0)", here],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == SAYS[name].split()
