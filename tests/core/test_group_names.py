"""Names of groups: 64 at a time, and as many as one likes one after the other."""

import contextlib

import numpy as np
import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from local_wheel import MS, LocalTimers, LocalWheel, cookies
from wheeld.tables.registry import targets
from wheeld_client import Timers, WheelError, connect, pending_timers
from wheeld_core import _native
from wheeld_core.packing import Stage
from wheeld_core.views import RegistryView
from wheeld_core.views.structs import record

MANY = _native.GROUPS + 4


daemon = daemon_process(max_workers=_native.GROUPS + 8, keep_for="1h")


def join(daemon: Daemon, group: str | None = None, **options: str) -> Timers:
    timers = connect(str(daemon.directory), group=group, **options)
    assert len(timers.poll(0)) == 0
    return timers


def table(wheel: LocalWheel) -> RegistryView:
    return RegistryView(wheel.registry_memory)


def pass_through(daemon: Daemon) -> None:
    for number in range(MANY):
        with join(daemon, f"passing-{number}") as timers:
            timers.schedule(0.0, number, to=f"group:passing-{number}")
            assert receive(timers, 1)["cookie"].tolist() == [number]


def test_one_after_the_other(daemon: Daemon) -> None:
    with join(daemon) as sender:
        pass_through(daemon)
        with pytest.raises(ValueError, match="no worker has joined"):
            sender.schedule(1.0, to="group:passing-0")


def test_all_at_once(daemon: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(join(daemon, f"g{number}")) for number in range(64)]
        with pytest.raises(WheelError, match="all 64 groups have workers or pending timers: g0, g"):
            join(daemon, "one more")
        members[7].close()
        more = stack.enter_context(join(daemon, "one more"))
        members[6].schedule(0.0, 1, to="group:one more")
        members[6].schedule(0.0, 2, to="group:g63")
        assert receive(more, 1)["cookie"].tolist() == [1]
        assert receive(members[63], 1)["cookie"].tolist() == [2]


def test_timers_that_are_pending_for_a_group_keep_its_name(daemon: Daemon) -> None:
    with join(daemon) as sender:
        join(daemon, "empty").close()
        id = sender.schedule(1000.0, 5, to="group:empty")
        pass_through(daemon)
        with join(daemon, "empty") as member:
            sender.reschedule(id, 0.0)
            assert receive(member, 1)["cookie"].tolist() == [5]


def test_a_kept_member_keeps_its_group(daemon: Daemon) -> None:
    last = join(daemon, "kept", on_death="reroute", worker="last")
    last.schedule(1000.0, 6)
    last.close()
    until(lambda: [w["state"] for w in daemon.status()["workers"]] == ["kept"], "kept")
    pass_through(daemon)
    with join(daemon, "kept") as successor:
        until(lambda: successor.pending == 1, "inherited")


def test_what_is_offered_keeps_the_name_of_its_group(daemon: Daemon) -> None:
    with join(daemon) as sender:
        member = join(daemon, "left", on_death="keep", worker="who")
        sender.schedule(0.0, 7, to="group:left")
        until(lambda: sender.pending == 0, "fired")
        member.close()
        until(lambda: "kept" in [w["state"] for w in daemon.status()["workers"]], "kept")
        with connect(str(daemon.directory), worker="who") as member:
            pass_through(daemon)
            with pytest.raises(ValueError, match="no worker has joined"):
                sender.schedule(1.0, to="group:passing-0")
            sender.schedule(1000.0, 8, to="group:left")
            assert receive(member, 1)["cookie"].tolist() == [7]


def in_use(wheel: LocalWheel) -> bool:
    return table(wheel).group_target(0) in targets(wheel.view, wheel.slots)


def test_until_it_is_delivered() -> None:
    with LocalWheel() as wheel:
        sender, member = wheel.worker(0), wheel.worker(1, group="g")
        assert not in_use(wheel)
        sender.schedule(0.001, 1, to="group:g")
        assert in_use(wheel)
        wheel.advance(MS)
        assert wheel.view.links["completion"][: wheel.view.capacity].max() >> 60 == Stage.OFFERED
        assert in_use(wheel)
        assert cookies(member.poll(hold=True)) == [1]
        wheel.settle()
        assert in_use(wheel)
        member.acknowledge()
        assert not in_use(wheel)
        wheel.settle()
        assert not in_use(wheel)


def test_while_it_waits_behind_a_full_ring() -> None:
    with LocalWheel(capacity=1 << 13) as wheel:
        sender = wheel.worker(0)
        wheel.worker(1, "member", group="g")
        for _ in range(8):
            sender.schedule_many(np.zeros(500), np.zeros(500, np.uint64), to="member")
            wheel.settle()
        wheel.advance(MS)
        assert not in_use(wheel)
        sender.schedule(0.001, 1, to="group:g")
        wheel.advance(MS)
        assert wheel.slots.armed().size == 0
        assert in_use(wheel)
        wheel.depart(1)
        wheel.settle()
        assert in_use(wheel)  # it goes back to its sender, whose ring is full by now, too
        while 1 not in cookies(sender.poll()):
            wheel.settle()
        assert not in_use(wheel)


def test_restarts_know_the_names(daemon: Daemon) -> None:
    pass_through(daemon)
    name = f"passing-{MANY - 1}"
    with join(daemon, name) as member, join(daemon) as sender:
        daemon.kill_clock()
        sender.schedule(0.0, 1, to=f"group:{name}")
        assert receive(member, 1)["cookie"].tolist() == [1]
        daemon.kill()
        daemon.start()
        until(lambda: len(daemon.workers()) == 2, "taken over")
        sender.schedule(0.0, 2, to=f"group:{name}")
        assert receive(member, 1)["cookie"].tolist() == [2]
        sender.schedule(1000.0, 3, to=f"group:{name}")
        pending = pending_timers(str(daemon.directory))
        assert list(pending.targets.values()).count(f"group:{name}") == 1
        assert {int(target) for target in pending.timers["target"]} <= set(pending.targets)


def member_of_another_name(wheel: LocalWheel) -> LocalTimers:
    wheel.depart(1)
    wheel.settle()
    _native.name_group(wheel.registry_memory, 0, "new")
    wheel.group_names[0] = "new"
    return wheel.worker(1, group="new")


@pytest.mark.parametrize("restart", [False, True])
def test_a_sender_that_had_looked_before(restart: bool) -> None:
    with LocalWheel() as wheel:
        sender, member = wheel.worker(0), wheel.worker(1, group="old")
        sender.schedule(0.002, 1, to="group:old")
        member = member_of_another_name(wheel)
        sender.schedule(0.002, 2, to="group:new")
        if restart:
            wheel.restart_clock()
        wheel.advance(2 * MS)
        assert cookies(sender.poll()) == [1]
        assert cookies(member.poll()) == [2]


def test_a_sender_that_is_in_the_next_group() -> None:
    with LocalWheel() as wheel:
        sender = wheel.worker(0)
        wheel.worker(1, group="old")
        sender.schedule(0.001, 1, to="group:old")
        member = member_of_another_name(wheel)
        wheel.row(0)["groups"] = 1
        wheel.clock.presence(0, True, 1)
        wheel.advance(MS)
        assert wheel.view.links["completion"][: wheel.view.capacity].max() >> 60 == Stage.EXPIRED
        assert cookies(member.poll()) == []
        assert cookies(sender.poll()) == [1]


def test_a_name_half_written() -> None:
    with LocalWheel() as wheel:
        sender, _ = wheel.worker(0), wheel.worker(1, group="old")
        sender.schedule(0.002, 1, to="group:old")
        entry = table(wheel).groups[0]
        entry["used"] = 1 << 1
        entry["name"] = b"ne"
        for name in ("old", "ne"):
            with pytest.raises(ValueError, match="no worker has joined"):
                sender.schedule(0.002, 1, to=f"group:{name}")
        wheel.advance(2 * MS)
        assert cookies(sender.poll()) == [1]
        _native.name_group(wheel.registry_memory, 0, "new")
        assert table(wheel).group_names() == {0: "new"}
        assert table(wheel).group_target(0) >> 18 == 1


def test_the_number_of_names_goes_round() -> None:
    with LocalWheel() as wheel:
        sender, member = wheel.worker(0), wheel.worker(1, group="old")
        table(wheel).groups[0]["used"] = 0x3FFF << 1 | 1
        sender.schedule(0.001, 1, to="group:old")
        wheel.advance(MS)
        assert cookies(member.poll()) == [1]
        _native.name_group(wheel.registry_memory, 0, "new")
        assert table(wheel).group_target(0) == 0xFFF


@pytest.mark.parametrize("offset", [2**63, 2**64 - 128, -128, 1], ids=str)
def test_a_table_that_is_not_in_its_segment(offset: int) -> None:
    memory = memoryview(bytearray(1 << 17))[: 1 << 16]
    with LocalWheel() as wheel:
        memory[: len(wheel.registry_memory)] = wheel.registry_memory
    head = record(memory, "registry")
    head["rows_off"] = head["groups_off"] = offset if offset > 0 else len(memory) + offset
    before = bytes(memory)
    with pytest.raises(ValueError, match="the head of the worker table is damaged"):
        _native.set_row_state(memory, 1, 1)
    with pytest.raises(ValueError, match="the head of the worker table is damaged"):
        _native.name_group(memory, 0, "new")
    assert memory == before
