"""The observer: what is pending in a daemon, seen from outside."""

import time
from typing import Any

import numpy as np
import pytest

import wheeld
from wheeld_client import DaemonNotRunning, Observer, connect, pending_timers


def test_pending_timers() -> None:
    config = {"capacity": 256, "payload_bytes": 8, "virtual_clock": True}
    with (
        wheeld.embedded(**config) as name,
        connect(name, worker="a", group="web") as a,
        connect(name, worker="b") as b,
    ):
        first = a.schedule(1.0, 10, payload=b"abc")
        second = b.schedule_at(5.0, 2**64 - 1, clock="realtime", to="a")
        third = b.schedule(2.0, 12, interval=0.5, to="group:web")
        found = pending_timers(name)
        rows = {int(row["timer_id"]): row for row in found.timers}
        assert set(rows) == {first, second, third}
        assert [found.workers[int(rows[id]["owner"])] for id in (first, second)] == ["a", "b"]
        assert int(rows[first]["target"]) not in found.targets
        targets = [found.targets[int(rows[id]["target"])] for id in (second, third)]
        assert targets == ["a", "group:web"]
        assert int(rows[second]["cookie"]) == 2**64 - 1
        assert [int(rows[id]["clock"]) for id in (first, second)] == [0, 1]
        assert int(rows[third]["interval"]) == 500_000_000
        assert int(rows[first]["due"]) == 1_000_000_000
        assert bytes(rows[first]["payload"])[: int(rows[first]["payload_size"])] == b"abc"
        assert len(found.now) == 4
        with Observer(name) as observer:
            without = observer.pending(payloads=False).timers
        rest = [field for field in found.timers.dtype.names or () if field != "payload"]
        assert without.tolist() == found.timers[rest].tolist()


def test_a_prefix_is_a_key() -> None:
    with wheeld.embedded(capacity=256) as name, connect(name) as timers:
        timers.schedule_many([60.0] * 4, keys=[5, ("job", 5), ("job", "5"), "job"])

        def found(prefix: Any) -> set[Any]:
            return set(pending_timers(name, prefix=prefix).keys.values())

        assert found(np.int64(5)) == {5}
        assert found(("job", np.uint8(5))) == {("job", 5)}
        assert found(np.str_("jo")) == {"job"}
        for bad in (True, 1.5, ["job"], ("job", ("a",)), ("job", False)):
            with pytest.raises(TypeError, match=r"key .*: got"):
                found(bad)
        for bad in ("\ud800", "x" * 1024):
            with pytest.raises(ValueError, match="key"):
                found(bad)


def test_looking_takes_nothing() -> None:
    with wheeld.embedded(capacity=256) as name, connect(name, worker="a") as timers:
        with Observer(name) as observer:
            assert observer.unread("nobody") is None
            assert observer.unread("a") == 0
            timers.schedule_many([0.0] * 5)
            while observer.unread("a") != 5:
                time.sleep(0.001)
            assert observer.counters()["fired"] == 5
            assert len(observer.pending().timers) == 0
            assert abs(observer.now_ns() - timers.now_ns()) < 3600 * 10**9
            assert observer.wheel_token == timers.wheel_token
        assert len(timers.poll()) == 5


def test_what_a_receiver_has_to_expect() -> None:
    with (
        wheeld.embedded(capacity=256, virtual_clock=True) as daemon,
        connect(daemon) as timers,
        Observer(daemon) as observer,
    ):

        def seen(to: str) -> tuple[list[int], bool]:
            return observer.fired(to).tolist(), observer.awaits(to)

        assert seen("reader") == ([], False)  # nobody has addressed it
        for to in ("reader", "group:reader"):
            options = {"to": to, "detached": True}
            first, second = timers.schedule_many([1.0, 2.0], **options)
            timers.schedule(1.0)
            assert seen(to) == ([], True)
            daemon.advance(1.0)
            assert seen(to) == ([first], True)
            how = {"group": "reader"} if to.startswith("group") else {"worker": "reader"}
            with connect(daemon, **how) as reader:
                (event,) = reader.poll(10.0, hold=True)
                assert seen(to) == ([first], True)
                reader.acknowledge(event)
                assert seen(to) == ([], True)
                daemon.advance(1.0)
                assert seen(to) == ([second], False)
                reader.acknowledge(reader.poll(10.0, hold=True))
                assert seen(to) == ([], False)


def test_no_daemon() -> None:
    with pytest.raises(DaemonNotRunning, match="no wheeld daemon"):
        pending_timers("nowhere", "/nonexistent")


def test_a_piece_of_the_wheel() -> None:
    with wheeld.embedded(capacity=256) as name, connect(name) as timers:
        ids = timers.schedule_many([60.0] * 200)
        with Observer(name) as observer:
            parts = [observer.pending(at, at + 100).timers for at in (0, 100, 200)]
        found = sorted(int(id) for part in parts for id in part["timer_id"])
        assert found == sorted(ids.tolist())


@pytest.mark.parametrize("wrong", ["x", 1.0, None, 10**5000, -1, np.float64(2)], ids=range(6))
def test_what_is_no_place_is_refused_in_its_own_words(wrong: Any) -> None:
    with wheeld.embedded(capacity=64) as name, Observer(name) as observer:
        for option in ("begin",) if wrong is None else ("begin", "end"):
            with pytest.raises((TypeError, ValueError), match=f"{option}=.*: expected"):
                observer.pending(**{option: wrong})
        for call in (observer.awaits, observer.fired):
            if not isinstance(wrong, str):
                with pytest.raises(TypeError, match=r"to: got .*, expected str"):
                    call(wrong)
