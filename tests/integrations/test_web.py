"""Web frameworks under their real servers: a request that takes too long is ended with 504."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import web_server
from common_fixtures import embedded
from wheeld_client.integrations.gunicorn import connect_worker

daemon = embedded(capacity=4096, max_workers=32)
virtual = embedded(capacity=4096, max_workers=32, virtual_clock=True)

ASGI = ("--workers", "2", "--worker-class", "uvicorn_worker.UvicornWorker")


def test_fastapi_under_gunicorn(daemon: str, tmp_path: Path) -> None:
    with web_server.gunicorn("fastapi_apps:app", daemon, *ASGI, log=tmp_path / "log") as server:
        for path in ("/slow", "/all", "/moved"):
            status, text = server.get(path)
            assert status == 504, text
            assert "took longer than" in text
        answers = [json.loads(server.get("/quick")[1]) for _ in range(8)]
        assert all(answer["when"] for answer in answers)
        ended = {name for _ in range(8) for name in json.loads(server.get("/ended")[1])}
        assert ended  # by whichever of the two workers


@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
def test_wsgi_under_gunicorn(virtual: str, tmp_path: Path, kind: str) -> None:
    options = ["--worker-class", kind, *(["--threads", "2"] if kind == "gthread" else [])]
    paths = {"sync": ["/sleep", "/socket", "/code"], "gthread": ["/code"], "gevent": ["/sleep"]}
    with web_server.gunicorn(
        "web_apps:wsgi_app()", virtual, *options, log=tmp_path / "log"
    ) as server:
        first = server.get("/quick")
        assert first[0] == 200
        for path in paths[kind]:
            assert server.get(path) == (504, "the request took longer than 60 s\n")
            assert server.get("/quick") == first, "the same process goes on"


@pytest.mark.parametrize("app", ["flask_app", "django_app"])
def test_extensions_under_gunicorn(virtual: str, tmp_path: Path, app: str) -> None:
    with web_server.gunicorn(f"web_apps:{app}()", virtual, log=tmp_path / "log") as server:
        status, worker = server.get("/quick")
        assert status == 200
        assert worker.startswith("pid-")
        assert server.get("/sleep") == (504, "the request took longer than 60 s\n")
        assert server.get("/quick") == (status, worker)


def test_hooks_of_gunicorn(virtual: str, tmp_path: Path) -> None:
    conf = tmp_path / "gunicorn.conf.py"
    conf.write_text(f"""
from wheeld_client.integrations.gunicorn import connect_worker, leave_worker
workers = 2
preload_app = True
post_fork = connect_worker({virtual!r}, worker="web-{{age}}")
worker_exit = leave_worker
""")
    from daemons import until
    from wheeld_client import Observer

    with Observer(virtual) as observer:
        options = ("--config", str(conf))
        with web_server.gunicorn(
            "web_apps:wsgi_app(shared=True)", virtual, *options, log=tmp_path / "log"
        ) as server:
            wanted = {"web-1", "web-2"}
            until(lambda: wanted <= set(observer.workers()), "two workers")
            assert server.get("/sleep")[0] == 504, "the middleware uses that connection"
            assert set(observer.workers()) == wanted
        until(lambda: not wanted & set(observer.workers()), "that both have left")


@pytest.mark.parametrize("name", ["web-{x}", "web-{", "web-{}", "web-{age!z}", "web-{age.x}"])
def test_a_name_that_no_worker_can_have_is_refused_by_the_settings(name: str) -> None:
    with pytest.raises(ValueError, match=r"worker='web-.*expected a name, with \{age\}"):
        connect_worker("default", worker=name)
