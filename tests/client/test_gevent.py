"""The client in a process that gevent has patched: while one greenlet waits, the others go on.

Each program waits without end for what only another of its greenlets does.
"""

import subprocess
import sys

import pytest

from common_fixtures import embedded

pytest.importorskip("gevent")
PATIENCE = 60.0
"""Seconds until a program counts as hung; none takes that long."""

BEGINNING = """
from gevent import monkey
monkey.patch_all()
import os, signal, sys, threading, gevent
from wheeld_client import ClientClosed, DelayedOperation, MemoryPool, Purgatory, connect
timers = connect(sys.argv[1])
"""

PROGRAMS = {
    "poll": """
waiting = gevent.spawn(timers.poll, None)
gevent.sleep(0)
timers.schedule(0.001, 7)
print(waiting.get()["cookie"].tolist())
""",
    "poll in line": """
gevent.spawn_later(0.005, timers.schedule, 0.0, 1)
print(timers.poll(None)["cookie"].tolist())
""",
    "poll for a time": """
beats = []
def beat():
    while True:
        beats.append(1)
        gevent.sleep(0)
gevent.spawn(beat)
print(len(timers.poll(0.05)), len(beats) > 10)
""",
    "poll that is given up": """
try:
    with gevent.Timeout(0.01, ZeroDivisionError):
        timers.poll(None)
except ZeroDivisionError:
    timers.schedule(0.0, 3)
    print(timers.poll(None)["cookie"].tolist())
""",
    "poll that is closed": """
waiting = gevent.spawn(timers.poll, None)
gevent.sleep(0)
timers.close()
try:
    waiting.get()
except ClientClosed:
    print("closed")
""",
    "callbacks that wait for each other's": """
from gevent.event import Event
class Told(DelayedOperation):
    def __init__(self, hook):
        super().__init__(None)
        self.hook = hook
    def try_complete(self): return False
    def on_complete(self): self.hook()
seen = Event()
def first():
    nested.force_complete()
    seen.wait()
    print("first")
nested, second = Told(lambda: print("nested")), Told(seen.set)
with Purgatory(timers, "p") as purgatory:
    one = Told(first)
    for op in (one, nested, second):
        purgatory.try_complete_else_watch(op, ["k"])
    gevent.spawn_later(0, second.force_complete)
    one.force_complete()
""",
    "dispatching": """
ran, over = threading.Event(), threading.Event()
class Told(DelayedOperation):
    def try_complete(self): return False
    def on_complete(self): over.set()
with timers.dispatching() as dispatcher, Purgatory(timers, "p") as purgatory:
    timers.call_later(0.001, ran.set)
    purgatory.try_complete_else_watch(Told(0.001), ["k"])
    ran.wait()
    over.wait()
    print(dispatcher.running)
print(dispatcher.running)
""",
    "memory": """
pool = MemoryPool(timers, "p")
first = pool.allocate(1000)
def borrow(number):
    with pool.allocate(1000):
        gevent.sleep(0)
        print(number)
waiting = [gevent.spawn(borrow, number) for number in range(5)]
gevent.sleep(0.02)
first.release()
gevent.joinall(waiting)
print(pool.outstanding)
""",
}
SAYS = {
    "poll": "[7]",
    "poll in line": "[1]",
    "poll for a time": "0 True",
    "poll that is given up": "[3]",
    "poll that is closed": "closed",
    "callbacks that wait for each other's": "first nested",
    "dispatching": "True False",
    "memory": "0 1 2 3 4 0",
}


daemon = embedded(capacity=1024, pools=["p=1000,strict"])


def run(daemon: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGINNING + program, daemon],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_others_go_on(daemon: str, name: str) -> None:
    done = run(daemon, PROGRAMS[name])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == SAYS[name].split()


@pytest.mark.parametrize(
    "exit",
    [
        "timers.call_later(0.001, sys.exit, 7)",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "timers.call_later(0.001, os.kill, os.getpid(), signal.SIGTERM)",
    ],
    ids=["callback", "signal"],
)
def test_an_exit_is_the_programs(daemon: str, exit: str) -> None:
    done = run(daemon, f"dispatcher = timers.dispatching().start()\n{exit}\ngevent.sleep(1e6)\n")
    assert done.returncode == 7, done.stderr


def test_without_gevent_an_exit_ends_nothing(daemon: str) -> None:
    program = f"""
import sys, threading
from wheeld_client import connect
ran = threading.Event()
with connect({daemon!r}) as timers, timers.dispatching():
    timers.call_later(0.0, sys.exit, 7)
    timers.call_later(0.005, ran.set)
    ran.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, capture_output=True)
    assert done.returncode == 0
    assert b"SystemExit: 7" in done.stderr
