"""Workers that really use pools and watch keys, killed together with their supervisor in any order:
what stays is exactly what the living have, and fsck finds nothing."""

import os
import random
import signal
from collections.abc import Callable

from common_fixtures import daemon_process
from daemons import Daemon, stopped, until
from fsck_wheels import damaged
from remotes import Remote
from shared_words import Shared
from wheeld.fsck import run as fsck

ROUNDS = 6
POOLS = ("--pool", "p=64K", "--pool", "strict=8K,strict,largest=1K")
WATCHED = 20

BEGIN = f"""
from wheeld_client import DelayedOperation, MemoryPool, Purgatory
import random
class Never(DelayedOperation):
    def try_complete(self):
        return False
pools = [MemoryPool(timers, "p"), MemoryPool(timers, "strict")]
purgatory = Purgatory(timers, "requests")
operations = [Never(None) for _ in range({WATCHED})]
for number, operation in enumerate(operations):
    purgatory.try_complete_else_watch(operation, [(os.getpid(), number)])
lent, rest = [], threading.Event()
def borrow():
    chance = random.Random(SEED)
    while not rest.is_set():
        buffer = chance.choice(pools).try_allocate(chance.randrange(1, 1000))
        if buffer is not None:
            lent.append(buffer)
        if buffer is None or len(lent) > 20:
            lent.pop(chance.randrange(len(lent))).release() if lent else None
borrower = threading.Thread(target=borrow, daemon=True)
borrower.start()
"""


daemon = daemon_process(*POOLS, max_workers=5)


class Crew:
    """Workers that borrow and watch, by name."""

    def __init__(self, daemon: Daemon, chance: random.Random) -> None:
        self.daemon, self.chance = daemon, chance
        self.living: dict[str, Remote] = {}
        self.count = 0

    def join(self) -> None:
        self.count += 1
        worker = self.living[f"w{self.count}"] = Remote(self.daemon, worker=f"w{self.count}")
        worker.ask(BEGIN.replace("SEED", str(self.chance.getrandbits(32))))

    def lose(self) -> None:
        self.living.pop(self.chance.choice(list(self.living))).kill()

    def lose_supervisor(self) -> None:
        self.daemon.kill()
        self.daemon.start(*POOLS)

    def lose_both(self) -> None:
        first = self.chance.randrange(3)
        if first == 0:
            self.daemon.kill()
            self.lose()
        elif first == 1:
            self.lose()
            self.daemon.kill()
        else:
            with stopped(self.daemon.pid):
                self.lose()
                os.kill(self.daemon.pid, signal.SIGKILL)
            self.daemon.wait()
        self.daemon.start(*POOLS)

    def settled(self) -> bool:
        return set(self.daemon.workers()) == set(self.living)


def test_killed_in_any_order(daemon: Daemon, rng_seed: int) -> None:
    """After each round nothing of the dead is there; at last what the living say they have is what
    is out, and then nothing is."""
    crew = Crew(daemon, random.Random(rng_seed))
    try:
        for _ in range(ROUNDS):
            while len(crew.living) < 3:
                crew.join()
            deaths: list[Callable[[], None]] = [crew.lose, crew.lose_supervisor, crew.lose_both]
            crew.chance.choice(deaths)()
            until(crew.settled, "the dead are gone")
            assert damaged(fsck.run(str(daemon.directory))) == {}
        had = [0, 0]
        for worker in crew.living.values():
            worker.ask("rest.set()")
            worker.ask("borrower.join()")
            mine = worker.ask("[pool.outstanding for pool in pools]")
            had = [all_ + one for all_, one in zip(had, mine, strict=True)]
        shared = Shared.of(daemon)
        assert shared.used() == had
        assert shared.pools.out()[:, :-1].sum(axis=1).tolist() == had
        workers = daemon.workers().values()
        assert [0 < worker["watched_buckets"] <= WATCHED for worker in workers] == [True] * len(
            crew.living
        )
    finally:
        for worker in crew.living.values():
            worker.kill()
    until(lambda: daemon.workers() == {}, "all gone")
    assert [shared.traces(row) for row in range(5)] == [{}] * 5
    assert shared.used() == [0, 0]
    assert damaged(fsck.run(str(daemon.directory))) == {}
