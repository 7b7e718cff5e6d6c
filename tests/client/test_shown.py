"""A notebook's views: moments as dates, counters as a table."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np
import pandas as pd

import wheeld
from wheeld_client import connect


def test_moments_of_each_clock_are_dates() -> None:
    with wheeld.embedded(capacity=256) as name, connect(name) as timers:
        before = time.time_ns()
        timers.schedule(0.001, cookie=1)
        timers.schedule_at(datetime.now(UTC), cookie=2)
        events = np.concatenate([timers.poll(10, max_events=1), timers.poll(10, max_events=1)])
        fired = timers.dates(events["fired"])
        after = time.time_ns()
    assert fired.dtype == "M8[ns]"
    second = 10**9  # the wall clock may be slewed, never so far
    assert (fired >= np.datetime64(before - second, "ns")).all()
    assert (fired <= np.datetime64(after + second, "ns")).all()
    frame = pd.DataFrame({"cookie": events["cookie"], "fired": fired})
    assert frame["fired"].dt.year.tolist() == [datetime.now(UTC).year] * 2


def test_dates_under_a_virtual_clock() -> None:
    with wheeld.embedded(capacity=256, virtual_clock=True) as daemon, connect(daemon) as timers:
        begin = timers.dates(timers.now_ns())
        timers.schedule(3600)
        daemon.advance(3600)
        (fired,) = timers.dates(timers.poll(10)["fired"])
        assert fired - begin == np.timedelta64(1, "h")
        assert timers.dates([[0, 1]]).shape == (1, 2)


def test_counters_are_a_table() -> None:
    with (
        wheeld.embedded(capacity=256) as name,
        connect(name, worker="<b>") as timers,
    ):
        timers.schedule(60)
        stats = timers.stats()
    assert stats == dict(stats)
    html = stats._repr_html_()
    assert "<tr><th>worker</th><td>&lt;b&gt;</td></tr>" in html
    assert "<tr><th>pending</th><td>1</td></tr>" in html
    assert html.count("<table>") == html.count("</table>") > 3
