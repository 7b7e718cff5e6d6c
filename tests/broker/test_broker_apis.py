"""The APIs that the broker serves, and what it answers to all others that Kafka has."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from broker_outside import outside

pytest.importorskip("kio")

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from broker_outside import API_VERSIONS, Outside, decoded, framed, receive

SERVED = {
    0: ("Produce", 3, 9),
    1: ("Fetch", 4, 11),
    2: ("ListOffsets", 1, 6),
    3: ("Metadata", 0, 12),
    8: ("OffsetCommit", 2, 8),
    9: ("OffsetFetch", 1, 7),
    10: ("FindCoordinator", 0, 4),
    11: ("JoinGroup", 0, 4),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    15: ("DescribeGroups", 0, 5),
    16: ("ListGroups", 0, 4),
    18: ("ApiVersions", 0, 3),
    19: ("CreateTopics", 2, 7),
    20: ("DeleteTopics", 1, 5),
    22: ("InitProducerId", 0, 4),
    32: ("DescribeConfigs", 1, 4),
}
"""Lowest and highest version of each. Clients stay with what a broker says: changes are chosen."""


def schemas(api: int, version: int) -> tuple[Any, Any] | None:
    """Of request and answer, if there is such a version."""
    try:
        return load_request_schema(api, version), load_response_schema(api, version)
    except KioIndexError:
        return None


def others() -> Iterator[tuple[int, int]]:
    """Of each API that Kafka has, or might have, the versions that are not served."""
    for api in range(100):
        there = [version for version in range(20) if schemas(api, version)]
        for version in [*there, max(there, default=-1) + 1]:
            _, low, high = SERVED.get(api, ("", 0, -1))
            if not low <= version <= high:
                yield api, version


broker = outside("--workers", "1")


def ask(run: Outside, api: int, version: int) -> tuple[bytes | None, int]:
    """A request without a body, in the header of that version; the answer, and who asked."""
    found = schemas(api, version)
    flexible = found is not None and found[0].__flexible__
    with run.connected() as peer:
        peer.sendall(framed(struct.pack(">hhih", api, version, 7, -1) + b"\0" * flexible))
        return receive(peer), peer.getsockname()[1]


def test_what_is_served_is_as_listed(broker: Outside) -> None:
    _, body = decoded(API_VERSIONS, 0, ask(broker, API_VERSIONS, 0)[0])
    told = {int(one.api_key): (one.min_version, one.max_version) for one in body.api_keys}
    assert told == {api: (low, high) for api, (_, low, high) in SERVED.items()}


def test_all_others_are_refused(broker: Outside) -> None:
    """UNSUPPORTED_VERSION where that version's answer has one error for all of it; else the
    connection ends, and the log says why.
    """
    closed, answered = [], []
    for api, version in others():
        answer, port = ask(broker, api, version)
        found = schemas(api, version)
        names = {field.name for field in dataclasses.fields(found[1])} if found else set()
        if api == API_VERSIONS:
            header, body = decoded(api, 0, answer)  # every client reads that version
            assert body.api_keys
        elif "error_code" in names:
            header, body = decoded(api, version, answer)
        else:
            assert answer is None, (api, version)
            closed.append(port)
            continue
        assert (header.correlation_id, body.error_code) == (7, ErrorCode.unsupported_version)
        answered.append((api, version))
    assert min(len(answered), len(closed)) > 50
    said = broker.said()
    assert "handler failed" not in said
    assert all(f", {port})" in said for port in closed)
