"""Kafka's wire, by `kio`: frames to requests, and dicts to messages of any version.

A handler answers with a dict of what its newest version knows. `build` takes from it the fields
that the version at hand has, and gives the others their defaults.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import io
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import MISSING
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer, readers

PRODUCE: Final = 0
API_VERSIONS: Final = 18
_FIRST: Final = struct.Struct(">hhi")
MOST_BUT_PRODUCE: Final = 1 << 19
"""Bytes of a request: small fields become large objects."""

Answer = dict[str, Any]
Key = tuple[Any, int]
"""Topic, by its name or its id, and partition."""
Reader = Callable[[Any, int], tuple[Any, int]]
"""Reads from a buffer at an offset: the value, and its size. All of kio's readers are like this."""


class BadRequest(ValueError):
    """The bytes are not a request that could be answered: the connection is closed."""


class RequestRefused(ValueError):
    """How a handler refuses a request, or one partition or topic in it.

    `answer` is sent to the client: the code, and the fields that were given.
    """

    def __init__(self, code: ErrorCode, reason: str = "", **fields: Any) -> None:
        super().__init__(reason or code.name)
        self.code, self.answer = code, {"error_code": code, **fields}


class Call(NamedTuple):
    """A decoded request; `body` is kio's entity of its version, or None: it is not supported."""

    api: int
    version: int
    correlation: int
    client: str
    body: Any


def decode(data: memoryview, served: dict[int, tuple[int, int]]) -> Call:
    """A request; nothing of it refers to `data`. Raises `BadRequest`.

    `served` has the lowest and highest version of each API.
    """
    if len(data) < _FIRST.size:
        raise BadRequest(f"{len(data)} bytes, expected a request of at least {_FIRST.size}")
    api, version, correlation = _FIRST.unpack_from(data)
    low, high = served.get(api, (0, -1))
    about = f"API {api} version {version} (served: {low} to {high})"
    try:
        if not low <= version <= high:
            return _not_served(api, version, correlation)
        if api != PRODUCE and len(data) > MOST_BUT_PRODUCE:
            raise BadRequest(f"{len(data)} bytes, expected at most {MOST_BUT_PRODUCE}")
        schema = load_request_schema(api, version)
        header, size = entity_reader(schema.__header_schema__)(data, 0)
        body, _ = _entity_reader(schema)(data, size)
    except BadRequest as bad:
        raise BadRequest(f"{about}: {bad}") from None
    except Exception as error:  # of kio, also KeyError, OverflowError and others
        raise BadRequest(f"{about}: it cannot be read ({type(error).__name__})") from None
    return Call(api, version, correlation, getattr(header, "client_id", None) or "", body)


def _not_served(api: int, version: int, correlation: int) -> Call:
    """A call without a body, if that version's answer can say UNSUPPORTED_VERSION.

    The answer to ApiVersions is of version 0 then, which every client reads.
    """
    version = 0 if api == API_VERSIONS else version
    with suppress(Exception):  # kio does not know each version, and raises errors of several kinds
        if "error_code" in load_response_schema(api, version).__dataclass_fields__:
            return Call(api, version, correlation, "", None)
    raise BadRequest("UNSUPPORTED_VERSION, and its answer cannot say so")


def _shape(field: Any) -> tuple[bool, bool, Any]:
    """Whether a field is an array, whether it may be null, and the type of it or its elements."""
    kind, nullable = field.type, False
    if get_origin(kind) is UnionType:
        nullable, kind = True, next(one for one in get_args(kind) if one is not NoneType)
    is_array = get_origin(kind) is tuple
    return is_array, nullable, get_args(kind)[0] if is_array else kind


@functools.cache
def _entity_reader(schema: Any) -> Reader:
    """Like kio's, for untrusted input: kio's allocates as many elements as an array claims to have,
    and the process ends if there is not that much memory. Tagged fields are passed over.
    """
    flexible, fields = schema.__flexible__, {}
    for field in dataclasses.fields(schema):
        if "tag" in field.metadata:
            continue
        is_array, nullable, kind = _shape(field)
        if dataclasses.is_dataclass(kind):
            read = _entity_reader(kind)
        else:
            read = _reader_of(field.metadata["kafka_type"], flexible, nullable and not is_array)
        fields[field.name] = _array_reader(read, flexible, nullable) if is_array else read

    def read_entity(data: memoryview, offset: int) -> tuple[Any, int]:
        values, at = {}, offset
        for name, read in fields.items():
            values[name], size = read(data, at)
            at += size
        if flexible:
            count, size = readers.read_unsigned_varint(data, at)
            at += size
            for _ in range(count):
                at += readers.read_unsigned_varint(data, at)[1]
                length, size = readers.read_unsigned_varint(data, at)
                at += size + length
        if at > len(data):
            raise BadRequest("its tagged fields are longer than it is")
        return schema(**values), at - offset

    return read_entity


def _reader_of(kind: str, flexible: bool, nullable: bool) -> Reader:
    """kio's reader of a primitive type."""
    name = {"bool": "boolean"}.get(kind, kind)
    if kind in ("string", "bytes", "records"):
        text = kind == "string"
        if flexible:
            name = f"compact_string{'' if text else '_as_bytes'}{'_nullable' * nullable}"
        else:
            name = f"{'nullable_' * nullable}legacy_{'string' if text else 'bytes'}"
    found: Reader = getattr(readers, f"read_{name}")
    return found


def _array_reader(read: Reader, flexible: bool, nullable: bool) -> Reader:
    form = "compact" if flexible else "legacy"
    read_length: Reader = getattr(readers, f"read_{form}_array_length")

    def read_array(data: memoryview, offset: int) -> tuple[Any, int]:
        count, size = read_length(data, offset)
        at, found = offset + size, []
        if count in (None, -1) and nullable:
            return None, size
        if count is None or not 0 <= count <= len(data) - at:
            raise BadRequest(f"an array of {count} in {len(data) - at} bytes")
        for _ in range(count):
            one, size = read(data, at)
            at += size
            found.append(one)
        return tuple(found), at - offset

    return read_array


def partitions_of(topics: Any) -> Iterator[tuple[Key, Any]]:
    """The partitions of a request, whatever names that request has for them."""
    for topic in topics:
        for part in _first(topic, "partition_data", "partitions", "partition_indexes"):
            number = _first(part, "index", "partition", "partition_index", otherwise=part)
            yield (_first(topic, "topic", "name", "topic_id"), number), part


def _first(one: Any, *names: str, otherwise: Any = None) -> Any:
    return next((getattr(one, name) for name in names if hasattr(one, name)), otherwise)


def by_partition(
    asked: Iterable[tuple[Key, Any]], serve: Callable[[Key, Any], Answer], **on_error: Any
) -> list[Answer]:
    """The answers of `serve` for each partition, or its error with those fields, arranged as
    answers have it: by topic, under whatever names.
    """
    answers: dict[Any, list[Answer]] = {}
    for key, part in asked:
        try:
            answer = serve(key, part)
        except RequestRefused as refused:
            answer = on_error | refused.answer
        answer |= {"index": key[1], "partition_index": key[1]}
        answers.setdefault(key[0], []).append(answer)
    return [
        {"name": name, "topic": name, "topic_id": name}
        | {"partitions": parts, "partition_responses": parts}
        for name, parts in answers.items()
    ]


def by_name(wanted: Any, serve: Callable[[Any], Answer]) -> list[Answer]:
    """The answers of `serve` for each topic of a request, or its error."""
    answers = []
    for one in wanted:
        name = getattr(one, "name", one)
        about = {"topic_id": name} if isinstance(name, uuid.UUID) else {"name": name}
        try:
            answer = about | serve(one)
        except RequestRefused as refused:
            answer = about | refused.answer | {"error_message": str(refused)}
        answers.append({key: value for key, value in answer.items() if value is not None})
    return answers


def encode(call: Call, fields: Answer) -> bytes:
    schema = load_response_schema(call.api, call.version)
    return _written(schema, {"correlation_id": call.correlation}, fields)


def request(api: int, version: int, correlation: int, client: str, **fields: Any) -> bytes:
    """The bytes of a request, without their length."""
    head = {"request_api_key": api, "request_api_version": version, "client_id": client}
    schema = load_request_schema(api, version)
    return _written(schema, {**head, "correlation_id": correlation}, fields)


def _written(schema: Any, head: dict[str, Any], fields: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    for part, given in ((schema.__header_schema__, head), (schema, fields)):
        entity_writer(part)(out, build(part, given))
    return out.getvalue()


def build(schema: Any, fields: dict[str, Any]) -> Any:
    """An entity of a schema: nested entities are dicts, arrays lists."""
    values = {}
    for name, (nested, zero) in _plan(schema).items():
        value = fields.get(name, zero)
        if isinstance(value, list):
            value = tuple(build(nested, one) if nested else one for one in value)
        elif isinstance(value, dict):
            value = build(nested, value)
        if value is not MISSING:
            values[name] = value
    return schema(**values)


@functools.cache
def _plan(schema: Any) -> dict[str, tuple[Any, Any]]:
    """Of each field its nested schema, or None, and its default: what zeros on the wire are."""
    found = {}
    for field in dataclasses.fields(schema):
        is_array, nullable, kind = _shape(field)
        nested = kind if dataclasses.is_dataclass(kind) else None
        if field.default is not MISSING or field.default_factory is not MISSING:
            zero: Any = MISSING
        elif nullable or is_array or nested:
            zero = None if nullable else () if is_array else {}
        else:
            zero = _reader_of(field.metadata["kafka_type"], False, False)(bytes(16), 0)[0]
        found[field.name] = nested, zero
    return found


class BrokerClient:
    """The asking side of a connection: what followers and the benchmark use.

    `async with BrokerClient(host, port, "client-id") as peer: await peer.call(3, 8, topics=None)`.
    """

    def __init__(self, host: str, port: int, client: str) -> None:
        self._address, self._client = (host, port), client

    async def __aenter__(self) -> BrokerClient:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._writer.close()

    async def call(self, api: int, version: int, **fields: Any) -> Any:
        """Send a request and wait for its answer. `ConnectionError`: it broke, and whether the
        request was handled is not known.
        """
        frame = request(api, version, 0, self._client, **fields)
        try:
            self._writer.write(len(frame).to_bytes(4, "big") + frame)
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            answer = await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("the broker closed the connection") from None
        schema = load_response_schema(api, version)
        _, at = entity_reader(schema.__header_schema__)(answer, 0)
        return entity_reader(schema)(answer, at)[0]


def seconds(span: datetime.timedelta) -> float:
    """A request's timeout, never negative."""
    return max(0.0, span.total_seconds())


def milliseconds(count: float) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=int(count))
