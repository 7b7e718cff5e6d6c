"""Intake, driven at random: peers and handlers of all manners, and what must hold after each step.

    WHEELD_INTAKE_SEEDS=2000 python -m pytest tests/intake/test_intake_random.py

A run is a sequence of steps that follows from its seed, but for the kernel's timing. These hold:
`check` of intake_peers.py between any two steps; the requests of a peer are handled in the order in
which they were sent, each once; answers come in that order, each once, and with the right bytes; a
peer that nobody has harmed gets all of its answers; and at the end nothing is left anywhere.
"""

import asyncio
import os
import random
from typing import Any

import pytest

from intake_peers import BOTH_LOOPS, Peer, Place, check, framed, ripple, run, until
from intake_tls_peers import TlsPlace
from model_pool import ModelPool
from wheeld_client.intake.request import Request

pytestmark = BOTH_LOOPS
SEEDS = int(os.environ.get("WHEELD_INTAKE_SEEDS", "12"))
STEPS = 50
LARGEST = 3000
ANSWER = 1 << 20
"""Bytes of a large answer: some of them are more than a peer that does not read has room for."""


class Harm(BaseException):
    """No handler should raise this."""


HARMLESS = ["echo", "part", "waits", "polls", "polls_on", "silent", "large", "mutes"]
HARMFUL = ["raises", "base", "none_cancel", "ends", "stays", "bad"]
KIND = {name: number for number, name in enumerate(HARMLESS + HARMFUL)}


class Guest:
    """A peer, and what it may expect."""

    def __init__(self, number: int, peer: Peer) -> None:
        self.number = number
        self.peer = peer
        self.peer.patience = None  # wait_for may lose a cancellation (Python 3.11)
        self.sent: list[str] = []
        """The kinds of its complete requests; their positions are their names."""
        self.rest = b""
        """The missing part of the last one."""
        self.harmed = False
        self.finished = False
        self.answers: list[bytes] = []
        self.collector: asyncio.Task[None] | None = None

    def collect(self) -> None:
        if self.collector is None:
            self.collector = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        try:
            while True:
                self.answers.append((await self.peer.answer())[:12])
        except (AssertionError, OSError, ValueError):
            return

    def due(self) -> list[int]:
        return [at for at, kind in enumerate(self.sent) if kind != "silent"]

    def judge(self) -> None:
        got = [int.from_bytes(answer[4:8], "big") for answer in self.answers]
        assert all(int.from_bytes(one[:4], "big") == self.number for one in self.answers)
        due = self.due()
        assert got == due[: len(got)], f"{self.sent} got {got}"
        if not self.harmed:
            assert got == due, f"{self.sent} got only {got}"


class World:
    def __init__(self, seed: int, pool: ModelPool, *, tls: bool) -> None:
        self.dice = dice = random.Random(seed)
        self.pool = pool
        self.half_close = dice.random() < 0.5
        options: dict[str, Any] = {
            "max_requests": dice.randint(1, 4),
            "max_waiting": dice.randint(0, 3),
            "max_unsent": dice.choice([1, 64 << 20]),
            "max_connections": dice.choice([5, 100]),
            "largest": LARGEST,
            "half_close": self.half_close,
            "first_bytes": dice.choice([1, 64]),
            "rng": random.Random(seed),
        }
        self.place = (TlsPlace if tls else Place)(pool, self.handle, **options)
        self.open = asyncio.Event()
        self.guests: list[Guest] = []
        self.handled: dict[int, list[int]] = {}
        self.at_work = 0
        self.holds: list[Any] = []
        self.kept: list[Any] = []

    # -- the handler ------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Any:
        name = bytes(request.data[:12])
        number, at, kind = (int.from_bytes(name[i : i + 4], "big") for i in (0, 4, 8))
        before = self.handled.setdefault(number, [])
        assert at == len(before), "out of order, or twice"
        before.append(at)
        if at:
            assert request.connection.seen == number, "another peer's"  # type: ignore[attr-defined]
        request.connection.seen = number  # type: ignore[attr-defined]
        return await getattr(self, "_" + list(KIND)[kind])(request, name)

    async def _echo(self, request: Request, name: bytes) -> bytes:
        return name

    async def _part(self, request: Request, name: bytes) -> memoryview:
        self.kept.append(request.data[:4])
        return request.data[:12]

    async def _waits(self, request: Request, name: bytes) -> bytes:
        await self.open.wait()
        assert request.data[:12] == name
        return name

    async def _polls(self, request: Request, name: bytes) -> bytes:
        request.release()
        await self.open.wait()
        return name

    async def _polls_on(self, request: Request, name: bytes) -> bytes:
        await asyncio.sleep(0)
        request.release()
        await asyncio.sleep(0)
        return name

    async def _silent(self, request: Request, name: bytes) -> None:
        return None

    async def _large(self, request: Request, name: bytes) -> bytes:
        return name + bytes(ANSWER)

    async def _mutes(self, request: Request, name: bytes) -> bytes:
        request.connection.mute()
        asyncio.get_running_loop().call_later(0.001, request.connection.unmute)
        return name

    async def _raises(self, request: Request, name: bytes) -> bytes:
        kept = request.data[:4]
        raise ValueError(f"meant {kept!r}")

    async def _base(self, request: Request, name: bytes) -> bytes:
        raise Harm

    async def _none_cancel(self, request: Request, name: bytes) -> bytes:
        raise asyncio.CancelledError

    async def _ends(self, request: Request, name: bytes) -> bytes:
        request.connection.close()
        return name

    async def _stays(self, request: Request, name: bytes) -> bytes:
        for _ in range(3):
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                continue
            break
        return name

    async def _bad(self, request: Request, name: bytes) -> str:
        return "no bytes"

    # -- steps ------------------------------------------------------------------------------------

    async def step(self) -> None:
        alive = [guest for guest in self.guests if not guest.finished]
        steps: dict[Any, int] = {self.arrive: 2 if len(self.guests) < 8 else 0, self.server: 3}
        if alive:
            guest = self.dice.choice(alive)
            steps |= {self.sends: 12, self.leaves: 1, guest.collect: 2}
        chosen = self.dice.choices(list(steps), list(steps.values()))[0]
        if chosen == self.sends or chosen == self.leaves:
            await chosen(guest)
        elif (waits := chosen()) is not None:
            await waits
        for _ in range(self.dice.choice([0, 1, 2, 5])):
            await asyncio.sleep(0)
            check(self.place.intake)
            assert self.pool.used == self.place.intake._gate.bytes + sum(map(len, self.holds))

    async def arrive(self) -> None:
        if self.place.intake._limits._most == 5:
            for guest in self.guests:
                guest.harmed |= not self.handled.get(guest.number)
        try:
            peer = await self.place.peer()
        except ConnectionError:  # turned away in the handshake
            return
        guest = Guest(len(self.guests), peer)
        guest.harmed = self.place.intake._limits._most == 5
        self.guests.append(guest)

    async def sends(self, guest: Guest) -> None:
        data, guest.rest = guest.rest, b""
        for _ in range(self.dice.choice([0, 1, 1, 1, 4]) if data else 1):
            data += self.request(guest)
        if self.dice.random() < 0.3:
            cut = self.dice.randint(1, min(len(data), 100))
            data, guest.rest = data[:-cut], data[-cut:]
        if self.dice.random() < 0.02:
            data, guest.harmed, guest.finished = data + b"\xff\xff\xff\xff", True, True
        try:
            await guest.peer.send(data)
        except OSError:
            assert guest.harmed, "a peer that did nothing lost its connection"

    def request(self, guest: Guest) -> bytes:
        weights = [1 if kind in HARMFUL else 8 for kind in KIND]
        kind = self.dice.choices(list(KIND), weights)[0]
        size = self.dice.choice([12, 12, 100, 1000, LARGEST])
        name = b"".join(
            one.to_bytes(4, "big") for one in (guest.number, len(guest.sent), KIND[kind])
        )
        guest.sent.append(kind)
        guest.harmed |= kind in HARMFUL
        return framed(name + bytes(size - 12))

    async def leaves(self, guest: Guest) -> None:
        guest.finished = True
        guest.harmed |= bool(guest.rest) or not self.half_close
        how = self.dice.choice(["finish", "finish", "close", "vanish"])
        if how != "finish":
            guest.harmed = True
            if guest.collector is not None:
                guest.collector.cancel()
                await asyncio.wait([guest.collector])
                await ripple()  # the loop forgets the descriptor, which is another's soon
        try:
            getattr(guest.peer, how)()
        except OSError:
            assert guest.harmed

    def server(self) -> None:
        what = self.dice.randrange(7)
        connections = self.place.connections()
        one = self.dice.choice(connections) if connections else None
        if what == 0:
            self.open.set()
        elif what == 1:
            self.open.clear()
        elif what == 2 and (got := self.pool.try_allocate(self.dice.randint(1, LARGEST))):
            self.holds.append(got)
        elif what == 3:
            self.release()
        elif one is not None and what == 4:
            one.mute()
            asyncio.get_running_loop().call_later(0.001, one.unmute)
        elif one is not None and self.dice.random() < 0.1:
            for guest in self.guests:  # nobody knows whose it is before it has sent something
                guest.harmed = True
            if what == 5:
                one.close()
            elif one._task is not None:
                one._task.cancel()

    def release(self) -> None:
        while self.holds:
            self.pool.release(self.holds.pop())

    # -- the end ----------------------------------------------------------------------------------

    async def settle(self) -> None:
        self.open.set()
        self.release()
        for guest in self.guests:
            guest.collect()
            if guest.rest:
                try:
                    await guest.peer.send(guest.rest)
                except OSError:
                    assert guest.harmed
        for guest in self.guests:
            if not guest.harmed:
                await until(
                    lambda guest=guest: len(guest.answers) >= len(guest.due()),  # type: ignore[misc]
                    f"all answers of {guest.sent}: {guest.answers}; {self.place.intake.stats()}",
                )

    async def live(self) -> None:
        async with self.place:
            for _ in range(STEPS):
                await self.step()
            calm = self.dice.random() < 0.7
            if calm:
                await self.settle()
            self.release()
            await self.place.intake.close(self.dice.choice([0, 0.01, None]) if calm else 0)
            assert self.pool.used == 0
            assert not self.place.intake._connections
            stats = self.place.intake.stats()
            now = (
                "connections",
                "muted",
                "muted_explicitly",
                "in_flight",
                "waiting",
                "bytes",
                "unsent",
            )
            assert not any(stats[name] for name in now), stats
            self.open.set()  # those that were left behind
            for guest in self.guests:
                guest.collect()
                assert guest.collector is not None
                await asyncio.wait([guest.collector])
                guest.harmed |= not calm
                guest.judge()
            self.kept.clear()
            await ripple()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_sequence(seed: int, tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheeld_client.intake.server.LAST_CALL", 0.05)
    monkeypatch.setattr("wheeld_client.intake.connection.LINGER", 0.5)
    dice = random.Random(f"intake {seed}")
    pool = ModelPool(dice.choice([LARGEST, 2 * LARGEST]), strict=dice.random() < 0.5)
    run(lambda: World(dice.randrange(1 << 30), pool, tls=tls).live())
