"""The demo of the broker: clients, kills meanwhile, and an account that is exact."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kio")

from broker_outside import batch
from broker_runs import LONG, ROOT
from examples.broker import batches
from examples.broker.load import account, clients
from examples.broker.settings import Settings
from examples.broker.topics import Topics


@pytest.mark.skipif(not clients.installed(), reason="no client is there")
def test_the_demo_is_exact() -> None:
    load = ["--records", "400", "--rate", "200", "--kills", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.broker", "demo", "--json", *load],
        cwd=ROOT,
        capture_output=True,
        timeout=4 * LONG,
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    count = len(clients.installed())
    assert found["acknowledged"] == dict.fromkeys(clients.installed(), 400)
    assert [one["read"] for one in found["groups"].values()] == [400 * count] * count
    assert found["killed"] == {"worker": 3, "follower": 1, "clock": 1}
    assert found["restarts"] == 4
    assert found["replica_bytes"] > 0


def program(*lines: clients.Line, unsure: tuple[clients.Line, ...] = (), code: int = 0) -> Any:
    """A client that has ended, and what it has said."""
    process = SimpleNamespace(returncode=code)
    return SimpleNamespace(library="x", lines=list(lines), unsure=list(unsure), process=process)


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    """A broker that has ended; `a` and `b` are in its partition 0."""
    own = Settings(str(tmp_path), "nobody", 0, partitions=2)
    topics = Topics(own)
    topics.create("t", 2, {})
    for value in (b"a", b"b"):
        ((head, raw),) = batches.split(batch(value))
        partition = topics.partition("t", 0)
        assert partition is not None
        partition.append(head, raw, 0)
    topics.close()
    return own


A, B = (0, 0, b"a"), (0, 1, b"b")


@pytest.mark.parametrize(
    ("producer", "consumers", "faults"),
    [
        (program(A, B), [program(A, B)], {}),
        (program(A, B), [program(A), program(B)], {}),
        (program(A), [program(A, B)], {}),  # not acknowledged, and in the log: it may be read
        (program((-1, -1, b"a")), [program(A)], {}),
        (program(A, (0, 2, b"c")), [program(A, B)], {"record lost": 1, "not read": 1}),
        (program(A, (1, 1, b"b")), [program(A, B)], {"record misplaced": 1}),
        (program(A, B), [program(A)], {"not read": 1}),
        (program(A, B), [program(A, B), program(B)], {"read again": 1}),
        (program(A, B), [program(B, A)], {"read out of order": 1}),
        (program(A, B), [program(A, unsure=(B,)), program(B)], {}),
        (program(A, B), [program(A, unsure=(B,))], {}),
        (program(A, B), [program(A, B, (0, 1, b"x"))], None),
        (program(A, code=1), [program(A)], {"producer failed": 1}),
    ],
)
def test_the_account_sees_what_is_wrong(
    own: Settings, producer: Any, consumers: list[Any], faults: dict[str, int] | None
) -> None:
    found = account.account(own, [producer], {"g": consumers}, [])
    if faults is None:
        assert Counter(found["faults"])["read wrongly"] == 1
    else:
        assert found["faults"] == faults
    assert found["exact"] == (faults == {})


def test_what_hangs_is_a_fault(own: Settings) -> None:
    assert not account.account(own, [program(A)], {"g": [program(A)]}, ["a producer"])["exact"]
