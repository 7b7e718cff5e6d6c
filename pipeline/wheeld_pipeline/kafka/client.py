"""Clients of a broker, with the settings that the source needs, and their queries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.kafka.options import EARLIEST, LATEST, Ids, KafkaOptions, Offsets

log = logging.getLogger("wheeld")
_AT_ONCE: Final = 10_000
"""Records taken from a client at once."""
_MOMENT: Final = 0.05
"""Seconds to wait for records that may not exist: offsets have gaps."""


@contextmanager
def consumer(options: KafkaOptions, group: str = "wheeld-reader") -> Iterator[Any]:
    """A consumer that joins no group and commits nothing by itself."""
    own = {
        "group.id": group,
        "enable.auto.commit": "false",
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
    }
    with _explained(options):
        made = Consumer({"isolation.level": "read_committed", **options.client, **own}, logger=log)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def _explained(options: KafkaOptions) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        reason = error.args[0].str() if isinstance(error.args[0], KafkaError) else error
        servers = options.client["bootstrap.servers"]
        raise PipelineError(f"Kafka at {servers}: {reason}") from error


def partitions(client: Any, topics: list[str], options: KafkaOptions) -> dict[str, list[int]]:
    """The partitions of each topic.

    Raises
    ------
    PipelineError
        No broker answers, or there is no such topic.
    """
    found = {}
    for topic in topics:
        about = client.list_topics(topic, timeout=options.timeout).topics[topic]
        if about.error is not None or not about.partitions:
            why = "it has no partition" if about.error is None else about.error.str()
            raise PipelineError(f"topic {topic!r}: {why}; make it first, with `kafka-topics`")
        found[topic] = sorted(about.partitions)
    return found


def exists(client: Any, topic: str, options: KafkaOptions) -> bool:
    error = client.list_topics(topic, timeout=options.timeout).topics[topic].error
    return error is None or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART


def topic_ids(client: Any, topics: list[str], options: KafkaOptions) -> Ids:
    """The ids of topics; brokers before Kafka 2.8 have none, and a cluster without a controller
    returns none.
    """
    cluster = client.list_topics(topics[0], timeout=options.timeout)
    if cluster.controller_id not in cluster.brokers:
        return {}
    admin = AdminClient({**options.client, "log_level": "3"}, logger=log)
    told = admin.describe_topics(TopicCollection(topics), request_timeout=options.timeout)
    ids = {topic: about.result().topic_id for topic, about in told.items()}
    return {topic: str(id) for topic, id in ids.items() if id.get_most_significant_bits()}


def bounds(client: Any, topics: list[str], options: KafkaOptions) -> tuple[Offsets, Offsets]:
    """The first available offset, and the one after the last, of each partition to read."""
    first: Offsets = {}
    after: Offsets = {}
    for topic, known in partitions(client, topics, options).items():
        wanted = known if options.assign is None else options.assign[topic]
        if missing := set(wanted) - set(known):
            raise PipelineError(f"option assign: topic {topic!r} has no partition {min(missing)}")
        for part in wanted:
            place = TopicPartition(topic, part)
            low, high = client.get_watermark_offsets(place, timeout=options.timeout)
            first.setdefault(topic, {})[part] = low
            after.setdefault(topic, {})[part] = high
    return first, after


def resolve(wanted: int | Offsets, first: Offsets, after: Offsets, option: str) -> Offsets:
    """The offset that `earliest`, `latest` or JSON gives for each partition."""
    if isinstance(wanted, dict) and set(wanted) - set(first):
        unknown = sorted(set(wanted) - set(first))[0]
        raise PipelineError(f"option {option}: topic {unknown!r} is not one of those to read")
    found: Offsets = {}
    for topic, parts in first.items():
        for part in parts:
            at = wanted if isinstance(wanted, int) else wanted.get(topic, {}).get(part)
            if at is None:
                raise PipelineError(
                    f"option {option}: topic {topic!r} has a partition {part}, which the option"
                    " lacks; expected an offset, -2 (earliest) or -1 (latest)"
                )
            special = {EARLIEST: first[topic][part], LATEST: after[topic][part]}
            found.setdefault(topic, {})[part] = special.get(at, at)
    return found


def records(client: Any, place: Any, end: int, options: KafkaOptions) -> Iterator[list[Any]]:
    """The records of a partition from `place.offset` to before `end`, some at once.

    Offsets without a record (of transactions, or compacted away) are passed over.

    Raises
    ------
    PipelineError
        Records are no longer there, or the broker does not answer in time.
    """
    client.assign([place])
    at = place.offset
    while at < end:
        got = _some(client, end - at, options.timeout)
        if not got:
            raise PipelineError(
                f"topic {place.topic!r}, partition {place.partition}: no answer in "
                f"{options.timeout:g} s (option timeout), with offsets {at} to {end} to read"
            )
        kept = []
        for message in got:
            error = message.error()
            if error is None and message.offset() < end:
                kept.append(message)
                at = message.offset() + 1
            elif error is None or error.code() == KafkaError._PARTITION_EOF:
                at = end
            else:
                raise PipelineError(
                    f"topic {place.topic!r}, partition {place.partition}, offset {at}: "
                    f"{error.str()}"
                )
        if kept:
            yield kept
    client.unassign()


def _some(client: Any, most: int, seconds: float) -> list[Any]:
    """Available records; `consume` alone would wait for the full number."""
    first = client.poll(seconds)
    if first is None:
        return []
    more = min(most - 1, _AT_ONCE)
    return [first, *client.consume(more, _MOMENT)] if more else [first]
