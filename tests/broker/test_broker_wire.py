"""Bytes on the wire that are no request, or a request that is not served."""

from __future__ import annotations

import dataclasses
import io
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

pytest.importorskip("kio")

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records

from broker_runs import LONG, Run, batch, running
from examples.broker import wire
from examples.broker.worker import SERVED

FUZZ = int(os.environ.get("BROKER_FUZZ", "150"))
"""Frames; with 100,000 it goes on for minutes."""
pytestmark = pytest.mark.xdist_group("broker wire")
API_VERSIONS, PRODUCE, FETCH, METADATA, CREATE, COMMITTED = 18, 0, 1, 3, 19, 9


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    options = {"auto_create": False, "largest": 1 << 20, "largest_batch": 1 << 16}
    with running(tmp_path_factory.mktemp("broker"), **options) as run:
        ask(run, CREATE, 4, topics=[{"name": "t", "num_partitions": 2, "replication_factor": 1}])
        yield run


def connected(run: Run) -> socket.socket:
    return socket.create_connection(("127.0.0.1", run.port), LONG)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def answer_of(peer: socket.socket) -> bytes | None:
    """The next frame; None: the broker has closed the connection."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        try:
            got = peer.recv(1 << 16)
        except ConnectionResetError:
            return None
        if not got:
            return None
        data += got
    return data[4:]


def decoded(api: int, version: int, answer: bytes) -> Any:
    schema = load_response_schema(api, version)
    header, at = entity_reader(schema.__header_schema__)(answer, 0)
    body, size = entity_reader(schema)(answer, at)
    assert at + size == len(answer)
    return header, body


def ask(run: Run, api: int, version: int, **fields: Any) -> Any:
    """The answer to one request, over a connection of its own."""
    with connected(run) as peer:
        peer.sendall(framed(wire.request(api, version, 5, "test", **fields)))
        answer = answer_of(peer)
    assert answer is not None
    header, body = decoded(api, version, answer)
    assert header.correlation_id == 5
    return body


def produced(run: Run, records: bytes | None, partition: int = 0, **more: Any) -> Any:
    data = [{"name": "t", "partition_data": [{"index": partition, "records": records}]}]
    answer = ask(run, PRODUCE, 7, **{"acks": 1, "topic_data": data, **more})
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize(
    ("api", "version"),
    [
        pytest.param(api, v, id=f"{api}-{v}")
        for api, (a, b) in SERVED.items()
        for v in range(a, b + 1)
    ],
)
def test_every_version_that_is_announced_is_answered(broker: Run, api: int, version: int) -> None:
    ask(broker, api, version, acks=1)  # else a produce has no answer


def test_api_versions_says_what_is_served(broker: Run) -> None:
    told = ask(broker, API_VERSIONS, 3)
    assert {one.api_key: (one.min_version, one.max_version) for one in told.api_keys} == SERVED


def test_a_newer_client_is_told_what_is_served(broker: Run) -> None:
    with connected(broker) as peer:
        peer.sendall(framed(struct.pack(">hhih", API_VERSIONS, 99, 7, -1)))
        header, body = decoded(API_VERSIONS, 0, answer_of(peer) or b"")
        assert (header.correlation_id, body.error_code) == (7, ErrorCode.unsupported_version)
        assert {one.api_key for one in body.api_keys} == SERVED.keys()


@pytest.mark.parametrize(
    ("api", "version", "answered"),
    [
        *((24, 4, True), (30, 2, False), (999, 0, False)),
        *((PRODUCE, 2, False), (FETCH, 14, True), (METADATA, 99, False), (8, 1, False)),
        *((11, 10, False), (19, 1, False), (20, 0, False), (COMMITTED, 99, False)),
    ],
)
def test_what_is_not_served_is_refused(broker: Run, api: int, version: int, answered: bool) -> None:
    request = struct.pack(">hhih", api, version, 5, -1)
    with connected(broker) as peer:
        peer.sendall(framed(request))
        answer = answer_of(peer)
    assert (answer is not None) == answered
    if answer is not None:
        assert decoded(api, version, answer)[1].error_code is ErrorCode.unsupported_version
    else:
        said = rf"API {api} version {version} \(served: [^)]*\): UNSUPPORTED_VERSION"
        with pytest.raises(wire.BadRequest, match=said):
            wire.decode(memoryview(request), SERVED)


def test_an_error_of_acks_0_ends_the_connection(broker: Run) -> None:
    for records, partition in ((batch(b"x"), 9), (b"\0" * 70, 0)):
        data = [{"name": "t", "partition_data": [{"index": partition, "records": records}]}]
        with connected(broker) as peer:
            peer.sendall(framed(wire.request(PRODUCE, 7, 1, "x", acks=0, topic_data=data)))
            assert answer_of(peer) is None


def test_a_place_that_a_later_version_knows_is_not_a_time(broker: Run) -> None:
    for timestamp, code in ((-2, ErrorCode.none), (-3, ErrorCode.unsupported_version)):
        parts = [{"partition_index": 0, "timestamp": timestamp}]
        answer = ask(broker, 2, 6, topics=[{"name": "t", "partitions": parts}])
        assert answer.topics[0].partitions[0].error_code is code


def test_static_members_are_refused(broker: Run) -> None:
    options = {"group_id": "g", "group_instance_id": "me", "protocol_type": "consumer"}
    options["session_timeout"] = wire.milliseconds(10_000)
    assert ask(broker, 11, 9, **options).error_code is ErrorCode.unsupported_version


@pytest.mark.parametrize(
    "frame",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 0x7FFFFFFF),
        struct.pack(">i", -1),
        struct.pack(">I", 0),
        framed(b"\0"),
        framed(struct.pack(">hhi", METADATA, 1, 1)),
        framed(wire.request(METADATA, 1, 1, "x", topics=[{"name": "t"}])[:-1]),
        framed(struct.pack(">hhihi", METADATA, 1, 1, -1, 0x7FFFFFFF)),
        framed(wire.request(METADATA, 9, 1, "x")[:-4] + b"\xff\xff\xff\xff\x7f"),
        framed(wire.request(CREATE, 4, 1, "x")[:-9] + b"\xff" * 4 + b"\0" * 5),
        framed(wire.request(METADATA, 1, 1, "x" * 100, topics=[{"name": "y" * 30_000}] * 34)),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_bytes_that_are_no_request_end_their_connection(broker: Run, frame: bytes) -> None:
    """An array of 34 billion, one that is null, a request that is too large for its kind, ..."""
    with connected(broker) as peer, connected(broker) as other:
        peer.sendall(frame)
        assert answer_of(peer) is None
        other.sendall(framed(wire.request(METADATA, 1, 1, "x")))
        assert answer_of(other) is not None
    assert broker.broker.deaths == 0


def test_records_that_are_no_batch(broker: Run) -> None:
    good = batch(b"value")
    bent = bytearray(good)
    bent[-1] ^= 1
    for records, code in (
        (good, ErrorCode.none),
        (bytes(bent), ErrorCode.corrupt_message),
        (good[:-1], ErrorCode.corrupt_message),
        (good + good, ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (None, ErrorCode.invalid_record),
        (batch(b"x" * (1 << 16)), ErrorCode.message_too_large),
    ):
        assert produced(broker, records).error_code is code
    assert produced(broker, good, 9).error_code is ErrorCode.unknown_topic_or_partition
    assert produced(broker, good, acks=2).error_code is ErrorCode.invalid_required_acks


def test_a_fetch_outside_of_the_log(broker: Run) -> None:
    def fetched(partition: int, offset: int, **more: Any) -> Any:
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1000}
        topics = [{"topic": "t", "partitions": [part]}]
        return ask(broker, FETCH, 11, topics=topics, max_wait=wire.milliseconds(60_000), **more)

    for partition, offset, code in (
        (1, 1, ErrorCode.offset_out_of_range),
        (1, -1, ErrorCode.offset_out_of_range),
        (2, 0, ErrorCode.unknown_topic_or_partition),
    ):
        (answer,) = fetched(partition, offset, min_bytes=1).responses
        assert answer.partitions[0].error_code is code
    assert fetched(1, 0, session_id=5).error_code is ErrorCode.fetch_session_id_not_found


st.register_type_strategy(Records, st.one_of(st.binary(), st.just(batch(b"value"))))


def without_tags(drawn: Any) -> Any:
    """The same with the defaults of its tagged fields, which the broker does not read."""
    if isinstance(drawn, tuple):
        return tuple(map(without_tags, drawn))
    if not dataclasses.is_dataclass(drawn):
        return drawn
    fields = dataclasses.fields(drawn)
    kept = {f.name: without_tags(getattr(drawn, f.name)) for f in fields if "tag" not in f.metadata}
    return type(drawn)(**kept)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=FUZZ)
@given(st.data())
def test_requests_are_read_as_kio_reads_them(data: st.DataObject) -> None:
    """kio makes room for as many elements as an array announces. A value that kio can write and not
    read, such as a time of 300 million years, is refused.
    """
    api = data.draw(st.sampled_from(sorted(SERVED)))
    version = data.draw(st.integers(*SERVED[api]))
    schema, out = load_request_schema(api, version), io.BytesIO()
    names = {"request_api_key": api, "request_api_version": version, "client_id": "x"}
    header = wire.build(schema.__header_schema__, names)
    entity_writer(schema.__header_schema__)(out, header)
    size = out.tell()
    entity_writer(schema)(out, drawn := data.draw(st.from_type(schema)))
    try:
        entity_reader(schema)(out.getvalue(), size)
    except (ValueError, OverflowError):
        with pytest.raises(wire.BadRequest):
            wire.decode(memoryview(out.getvalue()), SERVED)
    else:
        assert wire.decode(memoryview(out.getvalue()), SERVED).body == without_tags(drawn)
