"""The files of examples/containers/ agree with each other; the example service works."""

import asyncio
import re
import runpy
import tempfile
from typing import Any

import pytest

import wheeld
from programs import ROOT

FOLDER = ROOT / "examples" / "containers"
SHARED = {"/dev/shm", "/run/wheeld"}
yaml = pytest.importorskip("yaml", reason="PyYAML is missing: pip install --group docs")


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_the_services_of_compose_share_what_they_must() -> None:
    services = read("compose.yaml")["services"]
    for name in ("web", "games"):
        service = services[name]
        assert (service["ipc"], service["pid"]) == ("service:wheeld", "service:wheeld")
        assert service["volumes"] == services["wheeld"]["volumes"] == ["runtime:/run/wheeld"]
    assert services["wheeld"]["ipc"] == "shareable"
    for service in services.values():
        assert (ROOT / service["build"]["dockerfile"]).exists()


def test_the_containers_of_the_pod_share_what_they_must() -> None:
    pod = read("kubernetes.yaml")["spec"]["template"]["spec"]
    assert pod["shareProcessNamespace"]
    users = re.findall(r"^USER (\d+)$", (FOLDER / "Dockerfile").read_text(), re.M)
    assert [str(pod["securityContext"]["runAsUser"])] == users
    for container in pod["initContainers"] + pod["containers"]:
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= SHARED
    (shm,) = (volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"]["medium"] == "Memory"


async def statuses(app: Any) -> list[int]:
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    lifespan = asyncio.create_task(app({"type": "lifespan"}, told.get, said.put))
    await told.put({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    found = []
    for path in ("/", "/slow"):
        await app({"type": "http", "path": path}, told.get, said.put)
        found.append((await said.get())["status"])
        await said.get()
    await told.put({"type": "lifespan.shutdown"})
    await lifespan
    return found


def test_the_service_answers_and_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = runpy.run_path(str(FOLDER / "web/app.py"))
    with tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as base:
        monkeypatch.setenv("WHEELD_RUNTIME_DIR", base)
        with wheeld.embedded(name="default", runtime_dir=base, capacity=1000):
            assert asyncio.run(statuses(module["App"]())) == [200, 504]
