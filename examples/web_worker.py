"""A worker that times out its requests through the wheel: run several, watch `wheeld status`.

    python examples/web_worker.py NAME [SECONDS]

Each of its requests takes a random time; those that take longer than 200 ms time out.
"""

import random
import sys
import time

from wheeld_client import connect

TIMEOUT = 0.2


def serve(name: str, seconds: float) -> None:
    """Handle made-up requests for this many seconds, then print what became of them."""
    done = timed_out = 0
    waiting: dict[int, tuple[float, int]] = {}  # request -> (when its answer comes, timer)
    stop = time.monotonic() + seconds
    with connect("default", worker=name) as timers:
        for request in range(sys.maxsize):
            now = time.monotonic()
            if now >= stop:
                break
            answer = now + random.lognormvariate(-2.5, 0.8)
            waiting[request] = (answer, timers.schedule(TIMEOUT, cookie=request))
            for event in timers.poll(timeout=0.005):
                waiting.pop(int(event["cookie"]))
                timed_out += 1
            for ready in [r for r, (when, _) in waiting.items() if when <= time.monotonic()]:
                if timers.cancel(waiting[ready][1]):  # else its timeout is on the way
                    waiting.pop(ready)
                    done += 1
    print(f"{name}: {done} done, {timed_out} timed out")


if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0)
