"""The unit under the real systemd, as PID 1 of a container: what befalls it, and an exact account.

One boot plays all scenes (systemd_scenes.py), with a worker that goes on in each, or with four of
gunicorn; each test judges one of them.

    WHEELD_RESTARTS=20 python -m pytest tests/daemon/test_systemd_real.py -s

restarts and kills the unit twenty times each under load, and prints for how long no timer fired.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import service_load
import systemd_container
import systemd_scenes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("systemd"),
    pytest.mark.timeout(300 + 20 * service_load.ROUNDS),
]
PATIENCE = 200.0 + 20.0 * service_load.ROUNDS
MAX_EXPOSURE = 0.8
MODULES = (*("systemd_container", "systemd_worker", "service_load", "web_services", "daemons"),)


def tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:] if path.exists() else ""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    if (why := systemd_container.obstacle()) is not None:
        pytest.skip(why)
    for needed in service_load.NEEDED:
        pytest.importorskip(needed)
    out = tmp_path_factory.mktemp("systemd")
    out.chmod(0o755)
    with systemd_container.booted(out, "systemd_scenes", *MODULES) as container:
        container.wait(PATIENCE)
    if not (out / "said").exists():
        pytest.skip(f"the container does not boot here: {tail(out / 'boot.log')}")
    lines = tail(out / "found") and (out / "found").read_text().splitlines()
    scenes = {scene["scene"]: scene for scene in map(json.loads, lines)}
    wanted = {scene.__name__ for scene in systemd_scenes.SCENES}
    assert set(scenes) == wanted, tail(out / "said") + tail(out / "boot.log")
    yield scenes
    print(tail(out / "said"), tail(out / "journal"))


def check_account(scene: dict[str, Any]) -> None:
    account = scene["account"]
    assert account["scheduled"] >= 100
    assert {key: account[key] for key in ("lost", "doubled", "alien")} == {
        "lost": 0,
        "doubled": 0,
        "alien": 0,
    }
    assert (account["connections"], account["errors"], account["perhaps"]) == (1, [], 0)


def played(found: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    scene = found[name]
    assert "failed" not in scene, scene["failed"]
    return scene


def test_it_starts_as_the_readme_says(found: dict[str, dict[str, Any]]) -> None:
    scene = played(found, "start")
    assert (scene["rc"], scene["active"], scene["type"]) == (0, "active", "notify")
    assert scene["owner"], "not as root"
    assert scene["answers"]
    assert scene["exposure"] <= MAX_EXPOSURE


@pytest.mark.parametrize("name", ["hang_up", "reload", "stray_signals"])
def test_signals_end_nothing(found: dict[str, dict[str, Any]], name: str) -> None:
    scene = played(found, name)
    assert scene["same"]
    assert scene.get("rc", 0) == 0
    check_account(scene)


def test_messages_have_fields_in_the_journal(found: dict[str, dict[str, Any]]) -> None:
    scene = played(found, "journal")
    assert scene["units"] == [f"{systemd_scenes.UNIT}.service"]
    assert scene["identifiers"] == ["wheeld"]
    assert scene["others"] > 0
    assert [message.split(")")[-1].strip() for message in scene["about"]][:1] == ["connected"]
    assert len(scene["about"]) >= 2
    assert all("worker hangup" in message for message in scene["about"])


def test_no_number_of_kills_is_too_many(found: dict[str, dict[str, Any]]) -> None:
    scene = played(found, "kills")
    assert (scene["active"], scene["restarts"]) == ("active", systemd_scenes.KILLS)
    assert scene["same"], "it went on with the living memory"
    check_account(scene)


def test_a_clock_that_dies_or_stops_is_replaced(found: dict[str, dict[str, Any]]) -> None:
    scene = played(found, "clock")
    assert scene["same"], "by the same supervisor"
    check_account(scene)


def test_the_watchdog_replaces_a_supervisor_that_stops(found: dict[str, dict[str, Any]]) -> None:
    scene = played(found, "watchdog")
    assert (scene["restarts"], scene["same"]) == (1, True)
    check_account(scene)


@pytest.mark.parametrize("name", ["restarts", "kills_under_load"])
def test_no_service_notices(found: dict[str, dict[str, Any]], name: str) -> None:
    scene = played(found, name)
    account = service_load.Account(**scene["load"])
    print(f"\n{name} x {account.rounds}: {account.told()}")
    account.check()
    if name == "restarts":
        assert (scene["rc"], scene["active"]) == ([0] * account.rounds, "active")
    else:
        assert (scene["restarts"], scene["same"]) == (account.rounds, True)


def test_a_stop_leaves_nothing(found: dict[str, dict[str, Any]]) -> None:
    scene = played(found, "stop")
    assert (scene["rc"], scene["result"], scene["left"], scene["odd"]) == (0, "success", [], [])
