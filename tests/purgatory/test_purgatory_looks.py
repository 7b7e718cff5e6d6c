"""Which operations of another worker a check has asked: those under its key, next to no others."""

import pytest

from common_fixtures import local_wheel, local_workers
from local_wheel import LocalTimers
from purgatory_ops import Op, WatchView, bucket_of
from wheeld_client import Purgatory

wheel = local_wheel(max_workers=2)
workers = local_workers(2)


@pytest.mark.parametrize("dispatch_every", [1, 1000])
def test_checks_ask_next_to_no_other_keys(
    purgatories: list[Purgatory], workers: list[LocalTimers], dispatch_every: int
) -> None:
    theirs, ours = purgatories[:2]
    ops = [Op(None) for _ in range(200_000)]
    for key, op in enumerate(ops):
        ours.try_complete_else_watch(op, [("k", key)])
    checked = ops[:1000]
    for key in range(len(checked)):
        theirs.check_and_complete(("k", key))
        if (key + 1) % dispatch_every == 0:
            workers[1].dispatch()
    assert {op.tries for op in checked} <= {3, 4}
    others = sum(op.tries for op in ops) - 2 * len(ops) - len(checked)
    assert others <= 30  # of 3,050 in the same buckets


def test_marks_of_one_bucket_add_up(
    purgatories: list[Purgatory], workers: list[LocalTimers], view: WatchView
) -> None:
    theirs, ours = purgatories[:2]
    bucket, keys = bucket_of(ours, view, 1, 0), [0]
    for key in range(1, 400_000):
        op = Op(None)
        ours.try_complete_else_watch(op, [key])
        if view.directory[bucket, 0]:
            keys.append(key)
        op.cancel()
    assert len(keys) > 1
    ops = [Op(None) for _ in keys]
    for op, key in zip(ops, keys, strict=True):
        ours.try_complete_else_watch(op, [key])
        op.ready = True
    for key in keys:
        theirs.check_and_complete(key)
    workers[1].dispatch()
    assert [op.is_completed for op in ops] == [True] * len(keys)
