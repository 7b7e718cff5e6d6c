"""The broker of the example, as clients that know nothing of it see it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kio")

import broker_clients
from broker_runs import LONG, Run, inside, running
from programs import ROOT, of_checkout

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*_text is deprecated"),  # in kafka-python
    pytest.mark.xdist_group("broker clients"),
]
COUNT = 300
broker = inside(followers=1, min_in_sync=2)


@pytest.mark.parametrize("library", broker_clients.ALL)
def test_a_group_reads_what_a_client_wrote(broker: Run, library: str) -> None:
    if library not in broker_clients.installed():
        pytest.skip(f"{library} is not there")
    client = broker_clients.ALL[library](broker.address)
    told, lines = [], []
    for turn in ("first", "second"):
        told += client.produce(library, broker_clients.paced(turn, COUNT, 1e9))
        lines += client.consume(library, library, lambda found: len(found) >= COUNT)
    assert len(set(lines)) == len(lines) == 2 * COUNT
    assert sorted(line[2] for line in lines) == sorted(line[2] for line in told)
    if library != "kcat":  # it does not say where a record is
        assert sorted(lines) == sorted(told)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_go_through(broker: Run, codec: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    options = broker_clients.librdkafka(bootstrap_servers=broker.address, compression_type=codec)
    producer = confluent.Producer(options)
    sent = {b"%d" % number * 1000 for number in range(50)}
    for value in sent:
        producer.produce(codec, value)
    assert producer.flush(LONG) == 0
    client = broker_clients.Confluent(broker.address)
    read = client.consume(codec, codec, lambda found: len(found) >= len(sent))
    assert {line[2] for line in read} == sent


def admin(run: Run) -> Any:
    pytest.importorskip("confluent_kafka")
    from confluent_kafka.admin import AdminClient

    return AdminClient(broker_clients.librdkafka(bootstrap_servers=run.address))


def create(run: Run, name: str, partitions: int = 1, **options: Any) -> None:
    from confluent_kafka.admin import NewTopic

    client = admin(run)  # its calls end with it
    client.create_topics([NewTopic(name, partitions, **options)])[name].result(LONG)


def test_the_admin_client_of_librdkafka(broker: Run) -> None:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    client = admin(broker)
    create(broker, "made", 3, config={"min.insync.replicas": "1", "cleanup.policy": "delete"})
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create(broker, "made", 3)
    found = client.list_topics(timeout=LONG).topics["made"].partitions
    assert {number: (one.leader, one.replicas) for number, one in found.items()} == {
        number: (0, [0, 1]) for number in range(3)
    }
    broker_clients.Confluent(broker.address).produce("made", broker_clients.paced("v", 30, 1e9))
    parts = {TopicPartition("made", number): OffsetSpec.latest() for number in range(3)}
    assert sum(one.result(LONG).offset for one in client.list_offsets(parts).values()) == 30
    place = TopicPartition("made", 0)
    with pytest.raises(KafkaException):  # a place that this version does not know is not a time
        client.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(LONG)
    client.delete_topics(["made"])["made"].result(LONG)
    assert "made" not in client.list_topics(timeout=LONG).topics


@pytest.mark.parametrize(
    "options",
    [
        {"config": {"no.such.config": "1"}},
        {"config": {"cleanup.policy": "compact"}},
        {"config": {"message.timestamp.type": "LogAppendTime"}},
        {"config": {"max.message.bytes": "100"}},
        {"config": {"retention.ms": "1000"}},
        {"config": {"min.insync.replicas": "0"}},
        {"replication_factor": 3},
    ],
)
def test_a_topic_gets_what_it_asks_for_or_is_refused(broker: Run, options: dict[str, Any]) -> None:
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException, match=r"INVALID_(CONFIG|REPLICATION_FACTOR)"):
        create(broker, "refused", **options)
    assert "refused" not in admin(broker).list_topics(timeout=LONG).topics


def test_a_topic_that_is_made_again_is_another_one(tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    errors: list[Any] = []
    with running(tmp_path, followers=1, min_in_sync=2) as run:
        options = {"bootstrap_servers": run.address, "enable_idempotence": True}
        producer = confluent.Producer(broker_clients.librdkafka(**options))

        def send(count: int) -> None:
            for number in range(count):
                producer.produce("again", b"%d" % number, on_delivery=lambda e, _: errors.append(e))
            assert producer.flush(LONG) == 0

        client, client_of_topics = broker_clients.Confluent(run.address), admin(run)
        for count in (9, 5):
            create(run, "again")
            send(count)
            read = client.consume("again", "group", lambda found, n=count: len(found) >= n)
            assert [line[1] for line in read] == list(range(count))
            (log,) = tmp_path.glob("logs/again-*/0/log")
            (copy,) = tmp_path.glob(f"replica-1/{log.parent.parent.name}/0/log")
            assert copy.read_bytes() == log.read_bytes()  # acks=all: it has all
            if count == 9:
                client_of_topics.delete_topics(["again"])["again"].result(LONG)
    assert errors == [None] * 14


def test_acks_all_costs_the_same_with_many_partitions(tmp_path: Path) -> None:
    from uuid import UUID

    from examples.broker.follower import FETCHERS, Follower
    from examples.broker.settings import Settings
    from examples.broker.topics import MOST_PARTITIONS, Topics

    own = Settings(str(tmp_path), "nobody", 0)
    topics, follower = Topics(own), Follower(own, 1)
    topics.create("few", 4)
    assert len(follower.look_for_topics(topics)) == 4
    topics.create("many", MOST_PARTITIONS - 4)
    assert len(follower.look_for_topics(topics)) == FETCHERS
    assert max(map(len, follower.shares)) <= 8
    assert follower.look_for_topics(topics) == set()
    old = UUID(topics.all()["few"].id)
    topics.delete("few", "few")
    topics.create("few", 4)
    follower.look_for_topics(topics)
    assert old not in {topic for share in follower.shares for topic, _ in share}
    assert {place.name.split("-")[0] for place in (tmp_path / "replica-1").iterdir()} == {
        "few",
        "many",
    }
    for share in follower.shares:
        for copy in share.values():
            copy.close()
    topics.close()


def test_a_consumer_of_platformatic(broker: Run, tmp_path: Path) -> None:
    """It speaks current versions only. Needs node, and WHEELD_NPM: a folder with its package."""
    folder = os.environ.get("WHEELD_NPM")
    if not (folder and shutil.which("node")):
        pytest.skip("no node, or no @platformatic/kafka in WHEELD_NPM")
    os.symlink(Path(folder) / "node_modules", tmp_path / "node_modules")
    program = ROOT / "tests" / "support" / "broker_platformatic.mjs"
    shutil.copy(program, tmp_path)
    command = ["node", program.name, broker.address]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (0, "50\n"), done.stderr


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.broker", "start", "--port", "0", "--directory"]
    command += [str(tmp_path / "data"), "--followers", "0", "--workers", "1"]
    options: dict[str, Any] = {"cwd": ROOT, "env": of_checkout(), "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        try:
            assert process.stdout is not None
            assert re.match(r"broker on 127.0.0.1:\d+: 1 workers", process.stdout.readline())
            second = subprocess.run(command, capture_output=True, timeout=LONG, **options)
            assert second.returncode == 1
            assert second.stderr.startswith("broker: another broker runs in")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
