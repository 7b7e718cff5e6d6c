"""Several processes on one private daemon: one schedules, another receives.

python examples/prefork_timeouts.py
"""

import multiprocessing

import wheeld
from wheeld_client import connect


def receive(daemon: str, count: int) -> None:
    """Receive `count` expirations as the worker "receiver"."""
    with connect(daemon, worker="receiver") as timers:
        print("receiver is ready")
        got = 0
        while got < count:
            for event in timers.poll(timeout=5.0):
                print("receiver got", int(event["cookie"]))
                got += 1


def main() -> None:
    """Start the daemon and the receiver, send it three timers."""
    spawn = multiprocessing.get_context("spawn")  # a client does not survive a fork
    with wheeld.embedded(capacity=1024) as daemon, connect(daemon, worker="sender") as timers:
        receiver = spawn.Process(target=receive, args=(daemon, 3))
        receiver.start()
        while not any(name == "receiver" for name in timers.workers().values()):
            timers.poll(timeout=0.01)
        timers.schedule_many([0.03, 0.01, 0.02], [3, 1, 2], to="receiver")
        receiver.join()


if __name__ == "__main__":
    main()
