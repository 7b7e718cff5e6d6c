"""The own tests of `limits` and flask-limiter, run with the storage `wheeld://`.

They come from the source distributions of the installed versions, which pip fetches once
(tests/support/foreign_suites.py). Here is each of their tests that cannot pass, with the reason.
One that passes all the same has to go. slowapi's source distribution has no tests.
"""

from __future__ import annotations

import pytest

from foreign_suites import run_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NO_COUNT = "all limits are forgotten in one step, so how many there were is not known"
TOO_MANY = "a moving window has up to 65,535: a million is refused"
LIMITS = {
    "test_storage.TestConcreteStorages::test_storage_reset[in-memory]": NO_COUNT,
    "test_strategy.TestMovingWindow::test_moving_window_huge_cost[in-memory]": TOO_MANY,
    "aio.test_storage.TestConcreteStorages::test_storage_reset[in-memory]": NO_COUNT,
    "aio.test_strategy.TestAsyncMovingWindow::test_moving_window_huge_cost[in-memory]": TOO_MANY,
}
FLASK = {
    "test_configuration::test_constructor_arguments_over_config": "a MemoryStorage is expected",
    "test_flask_ext::test_reset_unsupported": "of Memcached, which cannot be reset",
    "test_views::test_flask_restful_resource": "needs flask-restful, and is about its views",
    "test_views::test_flask_restx_resource": "they expect it to fail",
}


def fails(project: str, *arguments: str, least: int) -> set[str]:
    outcomes = run_suite(project, "foreign_limits", *arguments)
    failed = {name: what for name, what in outcomes.items() if what != "passed"}
    print(f"{project}: {len(outcomes) - len(failed)} passed")
    for name, what in failed.items():
        print(f"{name}: {what}")
    assert len(outcomes) - len(failed) >= least
    return {name.removeprefix("tests.") for name in failed}


def test_limits() -> None:
    """Fixed, moving and sliding windows, sync and async; threads and tasks at once."""
    # the benchmarks measure; the tests of other storages are left out by the plugin
    assert fails("limits", "tests", "--ignore=tests/benchmarks", least=150) == set(LIMITS)


def test_flask_limiter() -> None:
    """Also with a daemon that cannot be reached for a while."""
    assert fails("flask-limiter", "tests", least=124) == set(FLASK)
