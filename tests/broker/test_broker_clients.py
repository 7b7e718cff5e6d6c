"""The broker of the example, as clients that know nothing of it see it."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from operator import itemgetter

import pytest

from broker_runs import LONG, Consumer, Run, inside, produce, until

pytest.importorskip("kio")

from examples.broker.load import clients

LIBRARIES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(name not in clients.installed(), reason=f"{name} is not there"),
    )
    for name in clients.LIBRARIES
]
COUNT = 300


broker = inside(followers=1, min_in_sync=2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_reads_what_a_client_wrote(broker: Run, library: str) -> None:
    """acks=all by an idempotent producer, with a follower that has to have it; then a group, of
    which the next consumer goes on where the first one was.
    """
    told, lines = [], []
    for turn in ("first", "second"):
        told += produce(broker, library, library, COUNT, turn)
        assert {value for _, _, value in told} >= {
            b"%s/%d" % (turn.encode(), n) for n in range(COUNT)
        }
        with Consumer(broker, library, library, f"of {library}") as consumer:
            until(lambda: len(consumer.lines) >= COUNT, f"{library} has read all")
        assert len(consumer.lines) == COUNT
        lines += consumer.lines
    if library != "kcat":  # which does not say where a record is
        assert sorted(lines) == sorted(told)
    assert len(set(lines)) == len(told) == 2 * COUNT
    for _, part in groupby(sorted(lines), itemgetter(0)):
        offsets = [offset for _, offset, _ in part]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_go_through(broker: Run, codec: str) -> None:
    """The broker does not look into them."""
    confluent = pytest.importorskip("confluent_kafka")
    common = {"bootstrap.servers": broker.address, "log_level": 0}
    producer = confluent.Producer({**common, "compression.type": codec, "acks": "all"})
    sent = {b"%d" % number * 1000 for number in range(50)}
    for value in sent:
        producer.produce(codec, value)
    assert producer.flush(LONG) == 0
    options = {"group.id": codec, "auto.offset.reset": "earliest"}
    consumer = confluent.Consumer({**common, **options})
    consumer.subscribe([codec])
    read: set[bytes] = set()

    def all_read() -> bool:
        read.update(one.value() for one in consumer.consume(100, 0.1))
        return read == sent

    until(all_read, "all is read")
    consumer.close()


def test_the_admin_client_of_librdkafka(broker: Run) -> None:
    pytest.importorskip("confluent_kafka")
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    topic = NewTopic("made", 3, config={"min.insync.replicas": "1"})
    admin.create_topics([topic])["made"].result(LONG)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([topic])["made"].result(LONG)
    found = admin.list_topics(timeout=LONG).topics["made"].partitions
    assert {number: (one.leader, one.replicas) for number, one in found.items()} == {
        number: (0, [0, 1]) for number in range(3)
    }
    resource = ConfigResource(ConfigResource.Type.TOPIC, "made")
    configs = admin.describe_configs([resource])[resource].result(LONG)
    assert configs["min.insync.replicas"].value == "1"
    produce(broker, "confluent-kafka", "made", 30)
    parts = {TopicPartition("made", number): OffsetSpec.latest() for number in range(3)}
    ends = [one.result(LONG).offset for one in admin.list_offsets(parts).values()]
    assert sum(ends) == 30
    with Consumer(broker, "confluent-kafka", "made", "looked at") as consumer:
        until(lambda: len(consumer.lines) == 30, "all is read")
        groups = admin.list_consumer_groups().result(LONG).valid
        assert "looked at" in {group.group_id for group in groups}
        group = admin.describe_consumer_groups(["looked at"])["looked at"].result(LONG)
        (member,) = group.members
        assert len(member.assignment.topic_partitions) == 3
    admin.delete_topics(["made"])["made"].result(LONG)
    assert "made" not in admin.list_topics(timeout=LONG).topics


KAFKA_PYTHON = """
import sys
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])
admin.create_topics([NewTopic("python", 2, 1)])
assert "python" in admin.list_topics()
admin.delete_topics(["python"])
assert "python" not in admin.list_topics()
admin.close()
"""


def test_the_admin_client_of_kafka_python(broker: Run) -> None:
    pytest.importorskip("kafka")
    command = [sys.executable, "-c", KAFKA_PYTHON, broker.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
