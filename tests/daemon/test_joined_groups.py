"""Groups that workers join as they run: of `Deadlines`, and of names that are addressed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from test_keys_survive import clock_dies, restarted, stopped_and_started, supervisor_dies

from children import in_child, receive
from common_fixtures import daemon_process, embedded
from daemons import LONG, Daemon, until
from remotes import Remote
from wheeld_client import Deadlines, Timers, connect

serving = daemon_process(max_workers=8, capacity=4096)
shared = embedded("function", max_workers=8, capacity=4096)

TELL = "told = []; deadlines = Deadlines(timers, 'sessions', told.append)"


def dispatched(timers: Timers, told: list[Any], count: int = 1) -> list[Any]:
    def enough() -> bool:
        timers.dispatch(0.05)
        return len(told) >= count

    until(enough, "they were told")
    return told


@pytest.mark.parametrize("happens", [clock_dies, supervisor_dies, restarted, stopped_and_started])
def test_members_stay_members(serving: Daemon, happens: Callable[[Daemon], None]) -> None:
    told: list[Any] = []
    with connect(str(serving.directory), reconnect_for=LONG) as timers:
        deadlines = Deadlines(timers, "sessions", told.append)
        deadlines.start("before", 1000.0)
        happens(serving)
        for key in ("before", "after"):
            deadlines.start(key, 0.01)
        assert sorted(dispatched(timers, told, 2)) == ["after", "before"]
        until(lambda: serving.status()["pending"] == 0, "nothing is left")


def test_one_joins_while_there_is_no_supervisor(serving: Daemon) -> None:
    with Remote(serving, reconnect_for=LONG, timeout=LONG) as one:
        os.kill(serving.status()["pid"], signal.SIGSTOP)
        one.tell(TELL)
        supervisor_dies(serving)
        one.answer()
        one.ask("deadlines.start('key', 0.01)")
        until(lambda: bool(one.ask("timers.dispatch(0.1) is None or told")), "it was told")


def test_timers_without_a_group_go_to_none_of_them(serving: Daemon) -> None:
    """A rerouted timer goes to the group, not to all that have the same deadlines."""
    with (
        Remote(serving) as stranger,
        Remote(serving, group="web", on_death="reroute") as one,
        connect(str(serving.directory), group="web") as two,
    ):
        stranger.ask(TELL)
        one.ask(TELL)
        Deadlines(two, "sessions", print)
        two.poll()
        one.ask("timers.poll(); timers.schedule_many([1.0] * 500, list(range(500))); None")
        stranger.ask("timers.poll(); None")
        one.kill()
        assert sorted(receive(two, 500)["cookie"].tolist()) == list(range(500))


def test_more_names_than_there_are_groups(shared: str) -> None:
    with connect(shared) as timers:
        for number in range(70):
            told: list[Any] = []
            deadlines = Deadlines(timers, f"name {number}", told.append)
            deadlines.start(1, 0.001)
            dispatched(timers, told)
            deadlines.close()


@pytest.mark.parametrize("name", ["", "a\nb", "n" * 200, "ü" * 40])
def test_names_that_are_no_groups(shared: str, name: str) -> None:
    told: list[Any] = []
    with connect(shared) as timers:
        Deadlines(timers, name, told.append).start(1, 0.001)
        dispatched(timers, told)


def test_a_forked_child_has_its_parents(shared: str) -> None:
    told: list[Any] = []
    with connect(shared, after_fork="reconnect") as timers:
        deadlines = Deadlines(timers, "of the parent", told.append)

        def child() -> list[Any]:
            deadlines.start("child", 0.01)
            return dispatched(timers, told)

        assert in_child(child) == ["child"]
        assert told == []
        deadlines.start("parent", 0.01)
        assert dispatched(timers, told) == ["parent"]


def test_the_next_daemon_has_them_again(serving: Daemon) -> None:
    told: list[Any] = []
    at = str(serving.directory)
    with connect(at, reconnect_for=LONG, on_reconnect=lambda event: None) as timers:
        deadlines = Deadlines(timers, "sessions", told.append)
        deadlines.start("lost", 1000.0)
        assert serving.command("stop").returncode == 0
        assert serving.wait() == 0
        serving.start()
        timers.dispatch(0.5)
        assert deadlines.remaining("lost") is None
        deadlines.start("new", 0.01)
        assert dispatched(timers, told) == ["new"]


@pytest.mark.parametrize("group", ["@sessions", "=bridge"])
def test_nobody_connects_as_one_of_them(shared: str, group: str) -> None:
    with pytest.raises(ValueError, match="is reserved"):
        connect(shared, group=group)


def test_who_lives_on_without_its_connection(serving: Daemon) -> None:
    """A member that was fenced has nothing in hand any more; others have all."""
    told: list[Any] = []
    with (
        Remote(serving, reconnect_for=LONG) as fenced,
        connect(str(serving.directory)) as timers,
    ):
        fenced.ask(TELL)
        fenced.ask("deadlines.start('key', 0.05)")
        fenced.ask("os.closerange(3, 1000)")
        Deadlines(timers, "sessions", told.append)
        assert dispatched(timers, told) == ["key"]
