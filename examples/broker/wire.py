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
import typing
from dataclasses import MISSING
from typing import Any, Final, NamedTuple

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial._parse import get_reader
from kio.serial.readers import read_int16, read_int32, read_unsigned_varint

PRODUCE: Final = 0
API_VERSIONS: Final = 18
MOST_BUT_PRODUCE: Final = 1 << 19
"""Bytes of a request: small fields become large objects."""
_ZEROS: Final[dict[str, Any]] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(0),
}
"""Of fields without a default; numbers are 0."""


class BadRequest(ValueError):
    """The bytes are no request that could be answered: their connection is closed."""


class Unsupported(Exception):
    """A request that is not served, but has an answer that can say so. `call`: without a body."""

    def __init__(self, call: Call) -> None:
        super().__init__(f"API {call.api} version {call.version} is not served")
        self.call = call


class Call(NamedTuple):
    """A decoded request; `body` is kio's entity of its version."""

    api: int
    version: int
    correlation: int
    client: str
    host: str
    body: Any


def decode(data: memoryview, served: dict[int, tuple[int, int]], host: str = "") -> Call:
    """A request; nothing of it refers to `data`.

    Parameters
    ----------
    served : dict
        API key -> lowest and highest version.

    Raises
    ------
    Unsupported, BadRequest
    """
    try:
        api, version, correlation = (
            read_int16(data, 0)[0],
            read_int16(data, 2)[0],
            read_int32(data, 4)[0],
        )
        low, high = served.get(api, (0, -1))
        if not low <= version <= high:
            raise _unsupported(api, version, correlation)
        schema = load_request_schema(api, version)
        header, size = entity_reader(schema.__header_schema__)(data, 0)
        if api != PRODUCE and len(data) > MOST_BUT_PRODUCE:
            raise BadRequest(f"API {api}: a request of {len(data)} bytes")
        body, _ = _read(schema, data, size)
    except (BadRequest, Unsupported):
        raise
    except Exception as error:  # of kio, also KeyError, OverflowError and others
        raise BadRequest(f"{type(error).__name__}: {error}") from None
    client = getattr(header, "client_id", None) or ""
    return Call(api, version, correlation, client, host, body)


class _Field(NamedTuple):
    name: str
    read: Any
    nested: Any
    is_array: bool
    nullable: bool


@functools.cache
def _readers(schema: Any) -> tuple[list[_Field], dict[int, _Field]]:
    """The fields of a schema, and those that have a tag."""
    plain, tagged = [], {}
    nested = {name: found for name, found, _ in _plan(schema)}
    for field in dataclasses.fields(schema):
        options = typing.get_args(field.type)
        nullable = type(None) in options and "tag" not in field.metadata
        arrays = [field.type, *options]
        is_array = any(typing.get_origin(one) is tuple for one in arrays)
        kind, reads_null = field.metadata.get("kafka_type"), nullable and not is_array
        read = get_reader(kind, schema.__flexible__, reads_null) if kind else None
        found = _Field(field.name, read, nested[field.name], is_array, nullable)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = found
        else:
            plain.append(found)
    return plain, tagged


def _read(schema: Any, data: memoryview, at: int) -> tuple[Any, int]:
    """An entity that a stranger sent, and where it ends.

    kio's own reader makes room for as many elements as an array says that it has, before it looks
    whether they are there, and the process ends if there is no such memory.
    """
    plain, tagged = _readers(schema)
    values = {name: zero for name, _, zero in _plan(schema) if zero is not MISSING}
    for field in plain:
        values[field.name], at = _read_field(schema, field, data, at)
    if schema.__flexible__:
        count, size = read_unsigned_varint(data, at)
        at += size
        for _ in range(count):
            tag, size = read_unsigned_varint(data, at)
            at += size
            length, size = read_unsigned_varint(data, at)
            at += size
            if tag in tagged:  # others are of newer clients
                name = tagged[tag].name
                values[name], _ = _read_field(schema, tagged[tag], data, at)
            at += length
    return schema(**values), at


def _read_field(schema: Any, field: _Field, data: memoryview, at: int) -> tuple[Any, int]:
    if not field.is_array:
        return _read_one(field, data, at)
    if schema.__flexible__:
        count, size = read_unsigned_varint(data, at)
        count -= 1
    else:
        count, size = read_int32(data, at)
    at += size
    if count == -1 and field.nullable:
        return None, at
    if not 0 <= count <= len(data) - at:
        raise BadRequest(f"{field.name}: an array of {count} in {len(data) - at} bytes")
    found = []
    for _ in range(count):
        one, at = _read_one(field, data, at)
        found.append(one)
    return tuple(found), at


def _read_one(field: _Field, data: memoryview, at: int) -> tuple[Any, int]:
    if field.nested is not None:
        return _read(field.nested, data, at)
    value, size = field.read(data, at)
    return value, at + size


def _unsupported(api: int, version: int, correlation: int) -> Exception:
    """UNSUPPORTED_VERSION, if that version's answer can say it; else there is no answer.

    The answer to ApiVersions is of version 0 then, which every client reads.
    """
    refused = Unsupported(
        Call(api, 0 if api == API_VERSIONS else version, correlation, "", "", None)
    )
    try:
        names = [field[0] for field in _plan(_response(refused.call))]
    except KioIndexError:
        names = []
    return refused if "error_code" in names else BadRequest(str(refused))


def encode(call: Call, fields: dict[str, Any]) -> bytes:
    """The answer to a request, of the request's version."""
    schema = _response(call)
    out = io.BytesIO()
    header = schema.__header_schema__
    entity_writer(header)(out, build(header, {"correlation_id": call.correlation}))
    entity_writer(schema)(out, build(schema, fields))
    return out.getvalue()


def _response(call: Call) -> Any:
    return load_response_schema(call.api, call.version)


def build(schema: Any, fields: dict[str, Any]) -> Any:
    """An entity of a schema: nested entities are dicts, arrays lists."""
    values = {}
    for name, nested, zero in _plan(schema):
        value = fields.get(name, zero)
        if value is MISSING:
            continue
        if isinstance(value, list):
            value = tuple(build(nested, one) for one in value) if nested else tuple(value)
        elif isinstance(value, dict):
            value = build(nested, value)
        values[name] = value
    return schema(**values)


@functools.cache
def _plan(schema: Any) -> list[tuple[str, Any, Any]]:
    """Name, nested schema or None, and what stands there if nothing is given, of each field."""
    found = []
    for field in dataclasses.fields(schema):
        kinds = [field.type, *typing.get_args(field.type)]
        kinds += [inner for kind in kinds for inner in typing.get_args(kind)]
        nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        if field.default is not MISSING or field.default_factory is not MISSING:
            zero: Any = MISSING
        elif type(None) in typing.get_args(field.type):
            zero = None
        elif typing.get_origin(field.type) is tuple:
            zero = ()
        elif nested is not None:
            zero = {}
        else:
            zero = _ZEROS.get(field.metadata["kafka_type"], 0)
        found.append((field.name, nested, zero))
    return found


class Peer:
    """The asking side of a connection: what followers and the load generator use.

    `async with Peer(host, port, "client-id") as peer: await peer.call(3, 8, topics=None)`.
    """

    def __init__(self, host: str, port: int, client: str) -> None:
        self._address, self._client, self._correlation = (host, port), client, 0

    async def __aenter__(self) -> Peer:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._writer.close()

    async def call(self, api: int, version: int, **fields: Any) -> Any:
        """Send a request and wait for its answer.

        Raises
        ------
        ConnectionError
            The connection broke: whether the request was handled is not known.
        """
        self._correlation += 1
        frame = request(api, version, self._correlation, self._client, **fields)
        try:
            self._writer.write(len(frame).to_bytes(4, "big") + frame)
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            answer = await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("the broker closed the connection") from None
        schema = load_response_schema(api, version)
        header, at = entity_reader(schema.__header_schema__)(answer, 0)
        if header.correlation_id != self._correlation:
            raise ConnectionError("an answer to another request")
        return entity_reader(schema)(answer, at)[0]


def request(api: int, version: int, correlation: int, client: str, **fields: Any) -> bytes:
    """The bytes of a request, without their length."""
    schema = load_request_schema(api, version)
    header = schema.__header_schema__
    names = {
        "request_api_key": api,
        "request_api_version": version,
        "correlation_id": correlation,
        "client_id": client,
    }
    out = io.BytesIO()
    entity_writer(header)(out, build(header, names))
    entity_writer(schema)(out, build(schema, fields))
    return out.getvalue()


def seconds(span: datetime.timedelta) -> float:
    """A request's timeout, never negative."""
    return max(0.0, span.total_seconds())


def milliseconds(count: int) -> datetime.timedelta:
    """What kio has for so many."""
    return datetime.timedelta(milliseconds=count)
