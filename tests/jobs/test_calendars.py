"""When jobs are due: zones, both folds of an hour, an hour that does not exist."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from wheeld_client.jobs.arguments import packed
from wheeld_client.jobs.calendars import CronError, Every, Trigger, of_spec

BERLIN = "Europe/Berlin"


def times(spec: list[Any], start: str, count: int) -> list[str]:
    calendar = of_spec(spec)
    assert calendar is not None
    moment: int | None = int(datetime.fromisoformat(start).timestamp()) * 10**9
    found = []
    for _ in range(count):
        moment = calendar.after(moment, 0)
        assert moment is not None
        found.append(datetime.fromtimestamp(moment // 10**9, UTC).strftime("%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("30 2 * * *", "2026-03-28T12:00+01:00", ["29 01:00", "30 00:30"]),  # 02:30 is not there
        ("30 2 * * *", "2026-10-24T12:00+02:00", ["25 00:30", "26 01:30"]),  # once of two
        (
            "*/30 2 * * *",
            "2026-10-24T12:00+02:00",
            ["25 00:00", "25 00:30", "25 01:00", "25 01:30"],
        ),
        ("0 * * * *", "2026-10-25T01:30+02:00", ["25 00:00", "25 01:00", "25 02:00"]),  # both folds
        ("0 * * * *", "2026-03-29T00:30+01:00", ["29 00:00", "29 01:00", "29 02:00"]),
        ("0 3 * * *", "2026-03-28T12:00+01:00", ["29 01:00", "30 01:00"]),
    ],
)
def test_days_of_changed_clocks(expression: str, start: str, expected: list[str]) -> None:
    assert times(["cron", expression, BERLIN], start, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "tz"),
    [("0 0 31 2 *", "UTC"), ("0 0 * *", "UTC"), ("x", "UTC"), ("0 0 * * *", "Europe/Nowhere"),
     ("0 0 * * *", "../etc"), (7, "UTC")],
)  # fmt: skip
def test_a_wrong_expression_has_a_named_error(expression: Any, tz: str) -> None:
    with pytest.raises(CronError, match=r"cron|tz=") as refused:
        of_spec(["cron", expression, tz])
    assert "object" not in str(refused.value)


def test_periods_are_on_one_grid_for_all() -> None:
    assert Every(timedelta(minutes=1)).after(None, 90 * 10**9) == 120 * 10**9
    assert Every(60).after(120 * 10**9, 0) == 180 * 10**9
    for wrong in (0, -1, math.nan, math.inf, 1e-9):
        with pytest.raises(ValueError, match="expected"):
            Every(wrong)


def test_triggers_of_apscheduler() -> None:
    cron = Trigger(CronTrigger.from_crontab("0 3 * * *", timezone=BERLIN))
    first = cron.after(None, int(datetime(2026, 3, 28, tzinfo=UTC).timestamp()) * 10**9)
    assert first is not None
    second = cron.after(first, 0)
    assert second is not None
    assert second - first == 23 * 3600 * 10**9
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ending = Trigger(
        IntervalTrigger(hours=1, start_date=start, end_date=start + timedelta(hours=1))
    )
    last = ending.after(None, int(start.timestamp()) * 10**9)
    assert last == int(start.timestamp()) * 10**9
    last = ending.after(last, 0)
    assert last is not None
    assert ending.after(last, 0) is None
    with pytest.raises(TypeError, match="get_next_fire_time"):
        Trigger(7)


class Says:
    """A trigger of one's own, without a text."""

    def __init__(self, moment: Any) -> None:
        self.moment = moment

    def get_next_fire_time(self, previous: Any, now: Any) -> Any:
        return self.moment


def test_a_trigger_of_ones_own() -> None:
    assert Trigger(Says(None)).spec == Trigger(Says(1)).spec  # in each process
    with pytest.raises(ValueError, match="no time zone"):
        Trigger(Says(datetime(2030, 1, 1))).after(None, 0)
    with pytest.raises(TypeError, match="expected a datetime"):
        Trigger(Says("noon")).after(None, 0)


@pytest.mark.parametrize(
    "wrong",
    [(1,), b"x", {1: 2}, datetime(2026, 1, 1), math.nan, math.inf, "\ud800", {1}, [[(1, 2)]],
     [10**4300], [-(10**5000)],
     {"a": {"b": b""}}, timedelta(1), type("S", (str,), {})("s")],
)  # fmt: skip
def test_what_would_change_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="place"):
        packed(wrong, "place")
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(ValueError, match="itself"):
        packed(itself)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="up to 100 deep"):
        packed(deep)
