"""The purgatory's benchmark: the old design is right, the workload as promised, all of it runs."""

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wheeld
from bench.purgatory import page, plots, sweep, waiting, workload
from bench.purgatory.designs.contenders import CONTENDERS, USES_DAEMON, Null
from bench.purgatory.designs.lazy_purgatory import LazyOperation, LazyPurgatory
from bench.purgatory.designs.old_purgatory import OldOperation, OldPurgatory
from bench.purgatory.measure import Point, measure
from bench.purgatory.sweep import Effort, Sweep
from programs import of_checkout

ROOT = Path(__file__).parents[2]
HOUR = 3600.0


def recording(base: type) -> type:
    class Recorder(base):  # type: ignore[misc]
        def __init__(self, timeout: float) -> None:
            super().__init__(timeout)
            self.ready = False
            self.calls: list[str] = []
            self.expired = threading.Event()

        def try_complete(self) -> bool:
            return self.ready and self.force_complete()

        def on_complete(self) -> None:
            self.calls.append("complete")

        def on_expiration(self) -> None:
            self.calls.append("expiration")
            self.expired.set()

    return Recorder


@pytest.fixture(params=["old", "lazy"])
def design(request: pytest.FixtureRequest) -> Iterator[tuple[Any, type]]:
    if request.param == "old":
        purgatory, base = OldPurgatory(), OldOperation
    else:
        purgatory, base = LazyPurgatory(), LazyOperation
    yield purgatory, recording(base)
    purgatory.shutdown()


def test_ready_operations_do_not_wait(design: Any) -> None:
    purgatory, operation_type = design
    operation = operation_type(HOUR)
    operation.ready = True
    assert purgatory.try_complete_else_watch(operation, ["a", "b"]) is True
    assert operation.calls == ["complete"]
    assert purgatory.watched == 0
    assert purgatory.num_delayed == 0


def test_a_check_completes_those_that_are_ready(design: Any) -> None:
    purgatory, operation_type = design
    operations = [operation_type(HOUR) for _ in range(10)]
    for operation in operations:
        assert purgatory.try_complete_else_watch(operation, ["a", "b"]) is False
    assert purgatory.watched == 20
    assert purgatory.check_and_complete("a") == 0
    for operation in operations[::2]:
        operation.ready = True
    assert purgatory.check_and_complete("c") == 0
    assert purgatory.check_and_complete("b") == 5
    assert purgatory.check_and_complete("a") == 0
    assert [operation.calls for operation in operations] == [["complete"], []] * 5
    assert purgatory.watched == 10  # the old design has found the finished ones under both keys


def test_expires_once_and_completes_before(design: Any) -> None:
    purgatory, operation_type = design
    operation = operation_type(0.001)
    assert purgatory.try_complete_else_watch(operation, ["a"]) is False
    assert operation.expired.wait(60)
    assert operation.force_complete() is False
    assert operation.calls == ["complete", "expiration"]


def test_one_of_many_threads_completes(design: Any) -> None:
    purgatory, operation_type = design
    for _ in range(50):
        operation = operation_type(HOUR)
        purgatory.try_complete_else_watch(operation, ["a"])
        start, won = threading.Barrier(4), []

        def compete(operation: Any = operation, start: Any = start, won: list[bool] = won) -> None:
            start.wait()
            won.append(operation.force_complete())

        threads = [threading.Thread(target=compete) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False, False, False, True]
        assert operation.calls == ["complete"]


def test_no_keys_is_an_error(design: Any) -> None:
    purgatory, operation_type = design
    with pytest.raises(ValueError, match="no keys"):
        purgatory.try_complete_else_watch(operation_type(HOUR), [])


def test_the_old_design_keeps_finished_operations_until_it_purges() -> None:
    purgatory = OldPurgatory(purge_interval=100)
    operation_type = recording(OldOperation)
    for _ in range(30):
        operation = operation_type(HOUR)
        purgatory.try_complete_else_watch(operation, ["a", "b"])
        operation.force_complete()
    assert purgatory.watched == 60
    assert purgatory.num_delayed == 30
    waiting = [operation_type(HOUR) for _ in range(80)]
    for operation in waiting:
        purgatory.try_complete_else_watch(operation, ["a"])
    last = operation_type(0.001)  # the reaper looks after it has expired one
    purgatory.try_complete_else_watch(last, ["a"])
    assert last.expired.wait(60)
    purgatory.shutdown()  # it ends its turn
    assert purgatory.purges >= 1
    assert purgatory.watched == 80
    assert purgatory.num_delayed == 80
    assert not any(operation.calls for operation in waiting)


# -- the workload ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", workload.CASES.values(), ids=workload.CASES)
def test_plan_has_the_distributions(case: workload.Case, rng_seed: int) -> None:
    plan = workload.make_plan(case, 10_000, 200_000, rng_seed)
    gaps = np.diff(plan.arrivals)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1e-4, rel=0.05)
    assert gaps.std() == pytest.approx(1e-4, rel=0.05)
    latencies = case.latencies(np.random.default_rng(rng_seed), 200_000)
    assert np.percentile(latencies, (50, 75)) == pytest.approx((case.p50, case.p75), rel=0.05)
    assert plan.waits.min() == 0
    assert 0 < plan.waits.max() <= workload.TIMEOUT_MS
    sigma = math.log(case.p75 / case.p50) / workload.QUARTILE
    late = 0.5 * math.erfc(math.log(workload.TIMEOUT_MS / case.p50) / sigma / math.sqrt(2))
    assert 1 - plan.to_complete / len(plan) == pytest.approx(late, abs=0.01)


def test_plans_are_the_same_for_all(rng_seed: int) -> None:
    one, two = (workload.make_plan(workload.CASES["low"], 1e4, 100, rng_seed) for _ in range(2))
    assert (one.arrivals == two.arrivals).all()
    assert (one.waits == two.waits).all()


@pytest.mark.parametrize("name", list(CONTENDERS))
def test_every_request_leaves_once(name: str, rng_seed: int) -> None:
    plan = workload.make_plan(workload.CASES["high"], math.inf, 2_000, rng_seed)
    with wheeld.embedded(capacity=10_000) if name in USES_DAEMON else nullcontext("") as daemon:
        tested = CONTENDERS[name](daemon)
        times = workload.run(plan, tested.operation, tested.purgatory, tested.expires)
        assert tested.helper_cpu() >= 0
        tested.close()
    assert times.completed <= plan.to_complete
    if tested.expires:
        assert times.completed + times.expired == len(plan)
        assert times.expired >= len(plan) - plan.to_complete
    assert 0 < times.enqueued <= times.finished


def test_no_request_comes_before_its_time(rng_seed: int) -> None:
    plan = workload.make_plan(workload.CASES["low"], 20_000, 1_000, rng_seed)
    begin, seen = time.monotonic(), []

    def watch(operation: Any, keys: Any) -> bool:
        seen.append(time.monotonic() - begin)
        return False

    request = workload.make_request(Null.operation, [0])
    completer = workload.Completer(begin)
    completer.reached = 1 << 40  # it never lags
    workload.drive(plan, completer, begin, request, watch)
    assert len(seen) == len(plan)
    assert (np.array(seen) >= plan.arrivals).all()


def test_no_request_comes_while_the_completer_lags(
    rng_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = workload.make_plan(workload.CASES["low"], math.inf, 5_000, rng_seed)
    completer = workload.Completer(time.monotonic() - 100.0)
    naps: list[float] = []
    seen: list[int] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        assert seen == []
        if len(naps) == 50:
            completer.reached = 1 << 40

    def watch(operation: Any, keys: Any) -> bool:
        seen.append(len(naps))
        return False

    monkeypatch.setattr(workload.time, "sleep", sleep)
    request = workload.make_request(Null.operation, [0])
    workload.drive(plan, completer, completer._begin, request, watch)
    assert seen == [50] * len(plan)


def test_a_rate_with_late_completions_is_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 60_000.0

    def fake(point: Point, seed: int) -> dict[str, Any]:
        late = 0.011 if limit < point.rate < math.inf else 0.009
        achieved = 100_000.0 if point.rate == math.inf else point.rate
        return {"achieved": achieved, "expired": 0.08 + late, "drawn": 0.08, "failed": None,
                "cpu_per_million": 1.0}  # fmt: skip

    monkeypatch.setattr(sweep, "measure", fake)
    tried = Sweep(Effort(0.1, 1, ("old",)), lambda text: None)
    tried.round(("old", "low", 1), 0, 1)
    (found,) = tried.saturations["old", "low", 1]
    assert limit / 1.1 < found <= limit


def test_flat_out_too_a_run_with_late_completions_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fake(point: Point, seed: int) -> dict[str, Any]:
        late = 0.3 if point.rate == math.inf and (seed == 3000 or point.case == "high") else 0.0
        numbers = dict.fromkeys(
            ("cpu_per_million", "helper_per_million", "gc_per_million", "peak_mb"), 1.0
        )
        achieved = min(100_000.0 + seed, point.rate)
        return {"achieved": achieved, "expired": 0.08 + late, "drawn": 0.08, "failed": None,
                **numbers}  # fmt: skip

    monkeypatch.setattr(sweep, "measure", fake)
    tried = Sweep(Effort(0.1, 3, ("old",)), lambda text: None)
    tried.run(cores=1)
    low, high = sorted(tried.summary(), key=lambda row: row["case"], reverse=True)
    assert (low["all at once/s"], low["expired %"]) == (101_500.0, 8.0)
    assert (high["all at once/s"], high["expired %"], high["CPU s/M"]) == (None, None, None)
    assert high["saturation/s"] > 90_000
    assert "| old | " in page.table(tried.summary())


def test_several_processes_are_summed(rng_seed: int) -> None:
    row = measure(Point("old", "high", math.inf, 2_000, processes=2), rng_seed)
    assert row["failed"] is None
    assert 0 < row["achieved"] <= row["enqueued"]
    assert row["expired"] >= 0.4


def test_a_broken_process_is_a_broken_run() -> None:
    row = measure(Point("nobody", "high", math.inf, 2_000), 1)
    assert "nobody" in row["failed"]
    assert row["achieved"] == 0


def test_taken_ones_are_gone_and_the_others_keep_their_order(rng_seed: int) -> None:
    rng, held = np.random.default_rng(rng_seed), list(range(100))
    taken = waiting.take_random(rng, held, 60)
    assert len(set(taken)) == 60
    left = sorted(set(range(100)) - set(taken))
    assert waiting.take_oldest(held, 30) == left[:30]
    assert [one for one in held if one is not None] == left[30:]


# -- the sweep -------------------------------------------------------------------------------------


def pretend(limits: dict[str, float], runs: list[Any]) -> Any:
    def pretended(point: Any, seed: int) -> dict[str, Any]:
        runs.append(point)
        achieved = min(point.rate, limits[point.contender])
        numbers = dict.fromkeys(
            ("cpu_per_million", "helper_per_million", "cores_used", "gc_per_million", "peak_mb",
             "expired", "drawn"), 1.0)  # fmt: skip
        return {"achieved": achieved, "failed": None, **numbers}

    return pretended


def test_saturation_is_the_highest_target_achieved(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    limits = {"wheel": 260_000.0, "old": 41_000.0}
    monkeypatch.setattr(sweep, "measure", pretend(limits, runs))
    found = Sweep(Effort(1.0, 2, ("wheel", "old")), lambda text: None)
    found.run(cores=2)
    assert found.saturations["wheel", "low", 1] == [266_100.0] * 2
    assert found.saturations["old", "high", 2] == [42_200.0]
    assert found.ratio("low", "old") == pytest.approx(266_100 / 42_200)
    assert all(target.ok for target in found.targets())
    assert max(run.rate for run in runs if run.rate < math.inf) < 1.6 * 260_000
    assert len(found.summary()) == 8


def test_broken_runs_are_told_and_do_not_end_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(point: Any, seed: int) -> dict[str, Any]:
        return {"achieved": 0.0, "failed": "MemoryError", "load": 0.0}

    monkeypatch.setattr(sweep, "measure", broken)
    told: list[str] = []
    found = Sweep(Effort(1.0, 1, ("old",)), told.append)
    found.run(cores=1)
    assert found.saturations["old", "low", 1] == [0.0]
    assert all("MemoryError" in text for text in told)
    assert all(row["failed"] == "MemoryError" for row in found.rows())


def test_figures_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"wheel": 260_000.0, "old": 41_000.0}
    monkeypatch.setattr(sweep, "measure", pretend(limits, []))
    found = Sweep(Effort(1.0, 1, ("wheel", "old")), lambda text: None)
    found.run(cores=2)
    written = plots.draw(found.rows(), "a machine", tmp_path)
    assert len(written) == len(plots.FIGURES) + 1
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_numbers_go_into_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"wheel": 260_000.0, "old": 41_000.0}
    monkeypatch.setattr(sweep, "measure", pretend(limits, []))
    found = Sweep(Effort(1.0, 1, ("wheel", "old")), lambda text: None)
    found.run(cores=2)
    machine = {**dict.fromkeys(page.MACHINE, "x"), "load_before": 0.0, "load_after": 0.0}
    content = {"machine": machine, "effort": "brief", "parts": {"sweep": found.result().as_json()}}
    file = tmp_path / "page.md"
    file.write_text(f"before\n{page.BEGIN}\nold numbers\n{page.END}\nafter\n")
    page.write(file, content)
    text = file.read_text()
    assert text.startswith(f"before\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\nafter\n")
    assert "| wheel | 266,100 | 260,000 |" in text
    assert "old numbers" not in text
    file.write_text("no marks")
    with pytest.raises(ValueError, match="marks"):
        page.write(file, content)


def run_command(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.purgatory", *arguments],
        cwd=directory,
        env=of_checkout(),
        capture_output=True,
        text=True,
    )


def test_quick_run_writes_everything(tmp_path: Path) -> None:
    arguments = ["--quick", "--one-process", "--json", "found.json", "--plots", "figures"]
    done = run_command(arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "targets reached" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert {"cpu", "cores", "python", "load_before", "load_after"} <= found["machine"].keys()
    parts = ["sweep", "waiting", "checks", "latency", "awaited", "collections"]
    assert list(found["parts"]) == parts
    assert all(part["rows"] for part in found["parts"].values())
    contenders = {row["contender"] for row in found["sweep"]["rows"]}
    assert contenders == {"wheel", "old", "nothing"}
    assert all(row["failed"] is None for row in found["sweep"]["rows"])
    assert list((tmp_path / "figures").glob("*.png"))


@pytest.mark.parametrize("wrong", [["--only", "nonsense"], ["--contenders", "nobody"]])
def test_unknown_names_are_refused(wrong: list[str], tmp_path: Path) -> None:
    done = run_command(wrong, tmp_path)
    assert done.returncode == 2
    assert "there are" in done.stderr
