"""The overflow as a whole, in Spark, with a daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import wheeld
from pipeline.overflow_runs import Place, Running, schedule
from wheeld_client import pending_timers
from wheeld_pipeline.overflow import Daemon, ShardMap
from wheeld_pipeline.overflow.checkpoint.files import LocalFiles
from wheeld_pipeline.overflow.driver import sink
from wheeld_pipeline.overflow.driver.manifest import Ledger, Manifest
from wheeld_pipeline.overflow.driver.offsets import SparkLog
from wheeld_pipeline.overflow.driver.tasks import Tasks
from wheeld_pipeline.overflow.machine import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(tmp_path: Path, runtime_dir: Path, daemon_name: str) -> Iterator[Place]:
    with wheeld.embedded(
        name=daemon_name, runtime_dir=runtime_dir, capacity=4096, payload_bytes=24
    ) as daemon:
        yield Place(tmp_path, daemon)


def test_commands_to_expirations(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near and far, cancelled and moved, good and bad: what each becomes. Two batches of many have
    commands, and only these are shared out."""
    with_rows, shared = Tasks.with_rows, list[Any]()

    def noted(*given: Any) -> Any:
        shared.append(given)
        return with_rows(*given)

    monkeypatch.setattr(Tasks, "with_rows", noted)
    now = time.time()
    place.send(
        schedule("near", 1, now - 1, cookie=-7, payload="what it is for"),
        schedule("moved", 1, now + 50_000, cookie=5, payload="kept"),
        schedule("far", 1, "2099-12-31T00:00:00+01:00"),
        schedule("gone", 1, now + 50_000),
        schedule("held", 1, now + 4_000),
        schedule("held", 1, now + 4_000),
        {"op": "cancel", "key": "nobody", "sequence": 1},
        '{"op": "schedule", "key": "half',
        {"op": "postpone", "key": "k", "sequence": 1},
        schedule("k", "x", now),
        schedule("k", 1, "tomorrow"),
        schedule("k", 1, 1e30),
        schedule("", 1, now),
    )
    rules = place.plan.rules._replace(horizon_ms=10_000_000)
    place.plan = place.plan._replace(rules=rules)  # "held" goes to the wheel at once, and stays
    running = Running(spark, place.plan)
    try:
        running.wait(lambda: "near" in place.expired() and running.count("handed") >= 2)
        place.send(
            {"op": "reschedule", "key": "moved", "sequence": 2, "deadline": time.time()},
            {"op": "cancel", "key": "gone", "sequence": 2},
            {"op": "cancel", "key": "held", "sequence": 2},
            {"op": "reschedule", "key": "near", "sequence": 9, "deadline": now},
        )
        running.wait(lambda: "moved" in place.expired() and running.count("withdrawn") == 1)
    finally:
        running.stop()
    place.check([("near", 1), ("moved", 2)])
    near, moved = sorted(place.rows(), key=lambda row: row["key"] != "near")
    assert (near["cookie"], near["payload"]) == (-7, b"what it is for")
    assert (moved["cookie"], moved["payload"]) == (5, b"kept")
    reasons = place.reasons()
    assert reasons.count("nothing is pending under this key") == 2
    for said in (
        "not a JSON object",
        "got postpone",
        "got x",
        "got tomorrow",
        "to 2261",
        "1 to 1024",
    ):
        assert any(said in reason for reason in reasons), (said, reasons)
    assert len(reasons) == 8
    assert running.query.lastProgress is not None
    assert len(shared) == 2 < running.account.batches


STEPS = ("attempted", "decided", "gathered", "published")


class Death(Exception):
    """Of the driver, at a step of a batch."""


def _die_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def dies(*_: Any) -> None:
        raise Death(step)

    def busy(manifest: Manifest) -> bool:
        return any(result.counts.get("expired") for result in manifest.results)

    decide, publish, rename = Ledger.decide, sink.publish, LocalFiles.rename

    def decide_or_die(ledger: Ledger, manifest: Manifest) -> None:
        if step == "attempted" and busy(manifest):
            dies()
        decide(ledger, manifest)
        if step == "decided" and busy(manifest):
            dies()

    def publish_or_die(out: Any, checkpoint: Any, manifest: Manifest, again: bool) -> None:
        publish(out, checkpoint, manifest, again)
        if step == "published" and busy(manifest):
            dies()

    def rename_or_die(files: LocalFiles, old: str, new: str) -> bool:
        if step == "gathered" and new.startswith("expired/"):
            dies()
        return rename(files, old, new)

    monkeypatch.setattr(Ledger, "decide", decide_or_die)
    monkeypatch.setattr(sink, "publish", publish_or_die)
    monkeypatch.setattr(LocalFiles, "rename", rename_or_die)


def test_deaths_in_the_middle_of_a_batch(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"k{i}" for i in range(40)]
    begin = time.time()
    place.send(*(schedule(key, 1, begin + 0.2 * i) for i, key in enumerate(keys)))
    for step in STEPS:
        with monkeypatch.context() as patch:
            _die_at(patch, step)
            running = Running(spark, place.plan)
            with pytest.raises(RuntimeError, match=step):
                running.wait(lambda: False)
            running.stop()
    place.run(spark, lambda _: place.expired() == set(keys))
    place.check((key, 1) for key in keys)


def test_a_daemon_dies_and_another_one_comes(
    spark: SparkSession, tmp_path: Path, runtime_dir: Path, daemon_name: str
) -> None:
    options: dict[str, Any] = {"capacity": 4096, "payload_bytes": 24, "runtime_dir": runtime_dir}
    place = Place(tmp_path, str(runtime_dir / daemon_name))
    keys = [f"k{i}" for i in range(20)]
    with ExitStack() as stack:
        life = stack.enter_context(ExitStack())
        life.enter_context(wheeld.embedded(name=daemon_name, **options))
        begin = time.time()
        place.send(*(schedule(key, 1, begin + 0.1 * i) for i, key in enumerate(keys)))
        place.send(*(schedule(f"far-{i}", 1, begin + 3600) for i in range(20)))
        rules = place.plan.rules._replace(horizon_ms=7_200_000)  # all go to the wheel at once
        running = Running(spark, place.plan._replace(rules=rules))
        stack.callback(running.stop)
        running.wait(lambda: running.count("handed") >= 40)
        life.close()  # and with it all that was in its wheel
        place.send(schedule("late", 1, time.time()))
        running.wait(lambda: running.count("refused") > 0)
        assert any("shard" in line and "handed out again" in line for line in running.lines)
        stack.enter_context(wheeld.embedded(name=daemon_name, **options))
        running.wait(lambda: place.expired() >= {*keys, "late"})
    place.check([(key, 1) for key in [*keys, "late"]])


def test_a_full_wheel_takes_the_rest_later(
    spark: SparkSession, tmp_path: Path, runtime_dir: Path, daemon_name: str
) -> None:
    with wheeld.embedded(
        name=daemon_name, runtime_dir=runtime_dir, capacity=128, payload_bytes=24
    ) as daemon:
        place = Place(tmp_path, daemon)
        keys = [f"k{i}" for i in range(400)]
        due = time.time() + 2
        place.send(*(schedule(key, 1, due) for key in keys))
        running = place.run(spark, lambda _: place.expired() == set(keys))
    place.check((key, 1) for key in keys)
    assert running.count("refused") > 0


def _one_batch(spark: SparkSession, place: Place) -> Running:
    running = Running(spark, place.plan._replace(trigger=None))
    running.wait(lambda: not running.query.isActive)
    return running


def test_what_is_there_now(spark: SparkSession, place: Place) -> None:
    place.send(schedule("near", 1, time.time()), schedule("far", 1, time.time() + 3600))
    for _ in range(8):  # hand out; the wheel says that it fired; to the sink
        _one_batch(spark, place)
        if place.rows():
            break
    place.check([("near", 1)])


@pytest.mark.parametrize("horizon_ms", [0, 3_600_000], ids=["waiting", "handed out"])
def test_a_run_goes_on_without_a_new_command(
    spark: SparkSession, place: Place, horizon_ms: int
) -> None:
    """The rows that the last run left waiting are handed out by the first wheel that has them, as
    `grace` is long; the run hears of those that it had handed out."""
    place.plan = place.plan._replace(rules=Rules(horizon_ms=horizon_ms, grace_ms=3_600_000))
    place.send(schedule("k", 1, time.time() + 1))
    from pyspark.sql import SparkSession

    first = _one_batch(spark, place)
    active = SparkSession.getActiveSession()
    second = place.run(spark, lambda _: place.expired() == {"k"})
    place.check([("k", 1)])
    assert first.count("handed") + second.count("handed") == 1
    assert SparkSession.getActiveSession() is active  # where formats and functions are looked up


def test_a_daemon_without_room_for_payloads(
    spark: SparkSession, tmp_path: Path, runtime_dir: Path, daemon_name: str
) -> None:
    with wheeld.embedded(name=daemon_name, runtime_dir=runtime_dir, capacity=128) as daemon:
        place = Place(tmp_path, daemon)
        place.send(schedule("k", 1, 0))
        running = place.run(spark, lambda running: running.count("refused") > 0)
    assert "--payload-bytes 24" in running.lines[0]


def test_each_shard_visits_its_own_daemon(
    spark: SparkSession, tmp_path: Path, runtime_dir: Path, daemon_name: str
) -> None:
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(
                wheeld.embedded(
                    name=f"{daemon_name}-{i}",
                    runtime_dir=runtime_dir,
                    capacity=128,
                    payload_bytes=24,
                )
            )
            for i in range(2)
        ]
        place = Place(tmp_path, daemons[0], shards=3)
        owners = (*map(Daemon, daemons), Daemon(daemons[0], host="elsewhere"))
        place.plan = place.plan._replace(shards=ShardMap(owners))
        place.send(*(schedule(f"k{i}", 1, time.time() + 3600) for i in range(60)))
        rules = place.plan.rules._replace(horizon_ms=7_200_000)
        running = Running(spark, place.plan._replace(rules=rules))
        stack.callback(running.stop)
        running.wait(lambda: running.count("handed") > 0 and running.count("refused") > 0)
        found = [pending_timers(daemon) for daemon in daemons]
    owners_of = [{one.workers[int(row)] for row in one.timers["owner"]} for one in found]
    assert [{name.rsplit("-")[-1] for name in names} for names in owners_of] == [{"0"}, {"1"}]
    assert sum(len(one.timers) for one in found) == running.count("handed")
    assert any("elsewhere" in line and "shard 2" in line for line in running.lines)


def test_rules_may_change_between_runs(spark: SparkSession, place: Place) -> None:
    place.send(schedule("k", 1, time.time() + 1))
    place.run(spark, lambda running: running.account.batches > 0, rules=Rules(horizon_ms=0))
    place.run(spark, lambda _: place.expired() == {"k"})
    place.check([("k", 1)])


@pytest.mark.parametrize("damage", ["cut short", "wrong type"])
def test_a_bad_file_of_parquet_is_named(spark: SparkSession, place: Place, damage: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"op": ["schedule"], "key": ["k"], "sequence": [1]}
    columns["deadline"] = pa.array([0], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table(columns), place.inbox / "good.parquet")
    bad = place.inbox / "bad.parquet"
    if damage == "cut short":
        bad.write_bytes((place.inbox / "good.parquet").read_bytes()[:-20])
    else:
        pq.write_table(pa.table(columns | {"sequence": ["one"]}), bad)
    running = Running(spark, place.plan._replace(form="parquet"))
    with pytest.raises(RuntimeError, match=r"bad\.parquet"):
        running.wait(lambda: bool(place.rows()))
    running.stop()
    assert not place.rows()


def test_offsets_tell_which_batches_have_commands(tmp_path: Path) -> None:
    folder = tmp_path / "query" / "offsets"
    folder.mkdir(parents=True)
    said = ["-", "a", "a", "b"]
    for batch, commands in enumerate(said):
        (folder / str(batch)).write_text(f"v1\n{{}}\n{commands}\n{batch}")
    (folder / "4").write_text("v2\n{}")
    offsets = SparkLog(LocalFiles(tmp_path))
    assert [offsets.moved(batch) for batch in range(6)] == [False, True, False, True, True, True]
    assert not SparkLog(LocalFiles(tmp_path)).moved(2)
