"""The options of `wheeld.kafka`, from strings, checked before a broker is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.source_options import count, flag, parsed, seconds, text, wrong

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_SERVERS: Final = "bootstrap.servers"
_OURS: Final = frozenset(
    {"group.id", "enable.auto.commit", "auto.offset.reset", "enable.partition.eof",
     "enable.idempotence", "transactional.id"}
)  # fmt: skip
"""Settings of librdkafka that the source sets itself."""
Offsets = dict[str, dict[int, int]]
"""By topic and partition."""
Ids = dict[str, str]
"""The broker's id of each topic; no later topic of the same name gets it."""
_ID: Final = "id"
"""The key, beside the partitions of a topic, of the id of the topic in which their offsets were
taken."""


@dataclass(frozen=True)
class KafkaOptions:
    """The values of `option(...)`; see `KafkaDataSource`."""

    client: dict[str, str] = field(default_factory=dict)
    subscribe: tuple[str, ...] = ()
    assign: dict[str, list[int]] | None = None
    starting: int | Offsets | None = None
    ending: int | Offsets = LATEST
    most: int | None = None
    fail_on_data_loss: bool = True
    topic: str | None = None
    timeout: float = 30.0
    query_name: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> KafkaOptions:
        """From Spark's strings.

        Raises
        ------
        PipelineError
            An option is unknown, or its value is not allowed.
        """
        settings = {key: value for key, value in given.items() if key.lower()[:6] == "kafka."}
        client = {_client_setting(key.lower()): value for key, value in settings.items()}
        if _SERVERS not in client:
            raise PipelineError(
                "option kafka.bootstrap.servers is missing: expected host:port of a broker"
            )
        others = {key: value for key, value in given.items() if key not in settings}
        return cls(client, **parsed("wheeld.kafka", others, _NAMES))

    def for_reading(self) -> KafkaOptions:
        """Return self, or raise if it does not say what to read."""
        if bool(self.subscribe) == (self.assign is not None):
            raise PipelineError(
                "expected one of the options subscribe (topics by commas) and assign (JSON)"
            )
        return self

    @property
    def topics(self) -> list[str]:
        return sorted(self.assign if self.assign is not None else self.subscribe)


def _client_setting(option: str) -> str:
    name = option.removeprefix("kafka.")
    if name in _OURS:
        raise PipelineError(f"option {option}: wheeld.kafka sets that itself; leave it out")
    return name


def _topics(option: str, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise wrong(option, value, "topics, by commas")
    return names


def _assigned(option: str, value: str) -> dict[str, list[int]]:
    try:
        content = json.loads(value).items()
        return {str(topic): [int(each) for each in parts] for topic, parts in content}
    except (ValueError, TypeError, AttributeError):
        raise wrong(option, value, 'JSON such as {"topic": [0, 1]}') from None


def _offsets(option: str, value: str) -> int | Offsets:
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    try:
        return read_offsets(json.loads(value))
    except (ValueError, TypeError, AttributeError):
        raise wrong(
            option, value, 'earliest, latest, or JSON such as {"topic": {"0": 23, "1": -2}}'
        ) from None


def read_offsets(content: dict[str, dict[str, Any]]) -> Offsets:
    return {
        topic: {int(part): int(at) for part, at in own.items() if part != _ID}
        for topic, own in content.items()
    }


def read_ids(content: dict[str, dict[str, Any]]) -> Ids:
    return {topic: own[_ID] for topic, own in content.items() if _ID in own}


def write_offsets(offsets: Offsets, ids: Ids) -> dict[str, dict[str, Any]]:
    """Offsets in JSON, in order, with the id of each topic if that is known."""
    return {
        topic: {str(part): own[part] for part in sorted(own)}
        | ({_ID: ids[topic]} if topic in ids else {})
        for topic, own in sorted(offsets.items())
    }


_NAMES: Final[dict[str, tuple[str, Any]]] = {
    "subscribe": ("subscribe", _topics),
    "assign": ("assign", _assigned),
    "startingOffsets": ("starting", _offsets),
    "endingOffsets": ("ending", _offsets),
    "maxOffsetsPerTrigger": ("most", count(2**63 - 1)),
    "failOnDataLoss": ("fail_on_data_loss", flag),
    "topic": ("topic", text),
    "timeout": (
        "timeout",
        seconds("above 0 and up to 3600", lambda found: 0 < found <= 3600),
    ),
    "queryName": ("query_name", text),
}
"""Settings `kafka.*` of the client come in addition."""
