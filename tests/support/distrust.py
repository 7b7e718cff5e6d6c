"""An honest worker whose memory others overwrite: `distrust.py HOW SEED ROUNDS`.

    rings   records of its rings: ids beyond the capacity, of its own timers, of others', garbage.
            Its other timers come, once, and nothing comes that is not its own
    all     every word that a member of the group can write, while it makes every call. It gets
            answers or errors; the process goes on

Prints "well" and what it has counted. A crash is the exit code's matter, a hang SIGALRM's.
"""

import faulthandler
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from local_wheel import MS, LocalTimers, LocalWheel
from wheeld_client import DelayedOperation, Purgatory, WheelError
from wheeld_client.pool.memory_pool import MemoryPool
from wheeld_core.views import dtype_of, record

CAPACITY = 1 << 14
ABSURD = [2**30 - 1, 2**30 - 2, CAPACITY, CAPACITY + 1, CAPACITY + 64, 2**29]
"""Slots that there are not."""


class Rings:
    """The completion and the return ring of a worker, as others map them."""

    def __init__(self, wheel: LocalWheel, row: int) -> None:
        memory, sizes = wheel.worker_memories[row], wheel.sizes
        self._port, self._row = wheel.view.ports, row
        self.fields = record(memory, "worker")
        comps, rets = sizes["comp_off"], sizes["ret_off"]
        self.comps = np.frombuffer(memory, dtype_of("completion"), 1 << sizes["comp_bits"], comps)
        self.rets = np.frombuffer(memory, "<u4", 1 << sizes["ret_bits"], rets)

    def unread(self, ring: Any, head: str, tail: str) -> list[int]:
        first, end = int(self.fields[head]), int(self._port[tail][self._row])
        return [position % len(ring) for position in range(max(first, end - len(ring)), end)]

    def events(self) -> list[int]:
        return self.unread(self.comps, "comp_head", "comp_tail")

    def returns(self) -> list[int]:
        return self.unread(self.rets, "ret_head", "ret_tail")


def timer_id(record_id: int) -> int:
    return record_id & ~(3 << 30)


def rings(rng: np.random.Generator, rounds: int) -> str:
    with LocalWheel(CAPACITY, payload_bytes=16) as wheel:
        honest, other = wheel.worker(0), wheel.worker(1)
        ring = Rings(wheel, 0)
        armed: dict[int, int] = {}
        spoilt: set[int] = set()
        count = came = 0
        for _ in range(rounds):
            cookies = np.arange(count, count + 24)
            delays = rng.integers(1, 12, 24) / 1e3
            ids = honest.schedule_many(delays, cookies, payloads=[b"x" * 9] * 24)
            armed |= dict(zip(ids.tolist(), cookies.tolist(), strict=True))
            count += 24
            theirs = other.schedule_many(delays, cookies).tolist()
            for id in rng.choice(list(armed), 6, replace=False).tolist():
                if honest.cancel(id):
                    del armed[id]
            other.poll(0)
            wheel.advance(4 * MS)
            waiting = [timer_id(int(each)) for each in ring.comps["id"][ring.events()]]
            alive = [id for id in armed if id not in waiting and id not in spoilt]
            spoil(rng, ring, spoilt, [*alive, *theirs])
            for event in honest.poll(0):
                id = int(event["timer_id"])
                assert id in armed, f"an event of nobody's, or a second one: {id:#x}"
                assert armed.pop(id) == int(event["cookie"]) or id in spoilt
                assert int(event["payload_size"]) <= 16
                came += 1
        wheel.advance(100_000 * MS)
        came += sum(armed.pop(int(id), None) is not None for id in honest.poll(0)["timer_id"])
        assert set(armed) <= spoilt, "one that nobody had touched did not come"
        doubted = honest._counters()["disbelieved"]
        assert doubted > rounds
        return (
            f"{count} timers, {came} came, {len(spoilt)} records overwritten, {doubted} passed over"
        )


def spoil(rng: np.random.Generator, ring: Rings, spoilt: set[int], ids: list[int]) -> None:
    for place in ring.events():
        if rng.random() < 1 / 3:
            spoilt.add(timer_id(int(ring.comps["id"][place])))
            slot, generation = int(rng.choice(ABSURD)), int(rng.integers(1, 5))
            garbage = [
                generation << 32 | int(rng.integers(4)) << 30 | slot,
                int(rng.choice(ids)),
                int(rng.integers(2**63)) | 2**63,
                0,
            ]
            ring.comps["id"][place] = garbage[rng.integers(len(garbage))]
            ring.comps["payload_size"][place] = rng.integers(2**32)
    for place in ring.returns():
        if rng.random() < 1 / 3:
            slots = [int(rng.choice(ABSURD)), int(rng.choice(ids)) & 0xFFFFFFFF, 2**32 - 1]
            ring.rets[place] = slots[rng.integers(len(slots))]


# -- all ------------------------------------------------------------------------------------------


class Waits(DelayedOperation):
    def try_complete(self) -> bool:
        return False


def words_of(rng: np.random.Generator, wheel: LocalWheel) -> list[Any]:
    memories = [wheel.slots_memory, *map(wheel.shared, ("watch", "pools", "keys"))]
    memories += wheel.worker_memories.values()
    return [np.frombuffer(memory, "<u8") for memory in memories]


def garbage(rng: np.random.Generator) -> int:
    kinds = [
        lambda: int(rng.choice(ABSURD)),
        lambda: (
            int(rng.integers(1, 9)) << 32 | int(rng.integers(4)) << 30 | int(rng.choice(ABSURD))
        ),
        lambda: (
            int(rng.integers(1, 9)) << 32 | int(rng.integers(4)) << 30 | int(rng.integers(CAPACITY))
        ),
        lambda: int(rng.integers(1, 9)) << 32 | int(rng.integers(6)),
        lambda: int(rng.integers(1, 9)) << 16 | int(rng.integers(6)) | int(rng.integers(4)) << 62,
        lambda: int(rng.integers(2**63)) * 2 + 1,
        lambda: 2**64 - 1,
        lambda: 0,
    ]
    return int(kinds[rng.integers(len(kinds))]())


def scribble(rng: np.random.Generator, wheel: LocalWheel) -> None:
    for words in words_of(rng, wheel):
        for at in rng.integers(len(words), size=3).tolist():
            words[at] = garbage(rng)
        for at in rng.integers(min(len(words), 200), size=1).tolist():
            words[at] = garbage(rng)
    rings_of = Rings(wheel, 0) if rng.random() < 0.5 else Rings(wheel, 1)
    for place in rings_of.events()[:2000]:
        rings_of.comps["id"][place] = garbage(rng)
    for place in rings_of.returns()[:2000]:
        rings_of.rets[place] = garbage(rng) & 0xFFFFFFFF
    states = wheel.slots.states
    states[rng.integers(len(states), size=8)] = [garbage(rng) for _ in range(8)]
    owners = wheel.slots.owners
    owners[rng.integers(len(owners), size=1)] = garbage(rng)


def calls_of(
    rng: np.random.Generator, timers: LocalTimers, wheel: LocalWheel, rest: list[Any]
) -> list[Callable[[], object]]:
    purgatory, pool, ids = rest
    hold = purgatory is None
    some = lambda: np.array([*rng.choice(ids, 8), garbage(rng)], np.uint64)  # noqa: E731
    delays = rng.integers(0, 30, 16) / 1e3

    def keep(found: Any) -> None:
        ids[:] = [*ids, *np.atleast_1d(found).tolist()][-200:]

    def take() -> None:
        with suppress(TimeoutError):
            pool.release(pool.allocate(100, 0))

    watching: list[Callable[[], object]] = [
        lambda: purgatory.try_complete_else_watch(Waits(0.01), [int(rng.integers(50)), "k"]),
        lambda: purgatory.check_and_complete(int(rng.integers(50))),
        lambda: timers.dispatch(0),
    ]
    return [
        lambda: keep(timers.schedule(float(delays[0]), 1, block=False)),
        lambda: keep(timers.schedule(0.001, 1, payload=b"abc", interval=0.001, block=False)),
        lambda: keep(timers.schedule(0.0, 1, to="w1", block=False)),
        lambda: keep(timers.schedule(0.0, 1, to="group:g", block=False)),
        lambda: keep(timers.schedule_many(delays, block=False)),
        lambda: timers.cancel(garbage(rng), block=False),
        lambda: timers.cancel_many(some(), block=False),
        lambda: timers.reschedule_many(some(), delays[:9], block=False),
        lambda: timers.poll(0),
        lambda: timers.poll(0, 3, hold=hold),
        *([lambda: scribble(rng, wheel), timers.acknowledge] if hold else []),
        lambda: timers.pending,
        timers.stats,
        take,
        *([] if hold else watching),
    ]


ERRORS = (WheelError, ValueError, MemoryError, OverflowError, BaseExceptionGroup)


def everything(rng: np.random.Generator, rounds: int) -> str:
    refused: dict[str, int] = {}
    pools = (("p", 1000, 1000, False),)
    done = 0
    for _ in range(rounds // 40):
        with LocalWheel(CAPACITY, payload_bytes=16, pools=pools) as wheel:
            made = [wheel.worker(0, group="g"), wheel.worker(1, group="g")]
            rests: list[list[Any]] = [
                [Purgatory(made[0], "p"), MemoryPool(made[0], "p"), [1, 2]],
                [None, MemoryPool(made[1], "p"), [1, 2]],
            ]
            for round in range(40):
                scribble(rng, wheel)
                with suppress(ValueError):  # what it finds wrong in the wheel itself
                    for _ in range(50):
                        if wheel.clock.advance(wheel.now + MS * int(rng.integers(3))) is None:
                            break
                scribble(rng, wheel)
                for timers, rest in zip(made, rests, strict=True):
                    for call in calls_of(rng, timers, wheel, rest):
                        done += 1
                        try:
                            call()
                        except ERRORS as error:
                            kind = type(error).__name__
                            refused[kind] = refused.get(kind, 0) + 1
                if round % 10 == 9:  # as the successor of one that was killed
                    with suppress(*ERRORS):
                        again = wheel._timers(1, "w1")
                        again.poll(0)
                        again.schedule(0.0, block=False)
            for timers in made:
                with suppress(*ERRORS):
                    timers.close()
    return f"{done} calls, refused {refused}"


if __name__ == "__main__":
    faulthandler.enable()
    signal.alarm(100)
    how, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    run = {"rings": rings, "all": everything}[how]
    print("well:", run(np.random.default_rng(seed), rounds))
