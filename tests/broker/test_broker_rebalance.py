"""Groups of four real consumers whose members come and go, by each way to share partitions."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from broker_outside import outside

pytest.importorskip("kio")

from broker_members import LIBRARIES, MODULES, PARTITIONS, Group
from broker_outside import Outside, create

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in kafka-python
EACH = [
    pytest.param(
        *(library, strategy),
        marks=pytest.mark.skipif(not find_spec(MODULES[library]), reason="it is not there"),
    )
    for library, member in LIBRARIES.items()
    for strategy in member.strategies
]


broker = outside()


@pytest.mark.parametrize(("library", "strategy"), EACH)
def test_four_members_come_and_go(broker: Outside, library: str, strategy: str) -> None:
    """Nothing is owned by two at once, and in the end all of it by somebody. Eager members give all
    away in each round, cooperative ones only what another one is to have.
    """
    topic = f"{library}-{strategy}"
    create(broker, topic)
    group = Group(broker.address, topic, library, strategy)
    try:
        for _ in range(4):
            group.join()
            group.settle(PARTITIONS)
        if strategy == "cooperative-sticky":
            assert len(group.given) == 2 + 1 + 1  # one of four, of two and two, of two, one and one
        else:
            assert len(group.given) >= 3 * PARTITIONS
        for _ in range(3):
            kept = {one: group.owned(one) for one in group.members[1:]}
            group.leave()
            group.settle(PARTITIONS)
            if strategy.endswith("sticky"):
                assert all(group.owned(one) >= before for one, before in kept.items())
            if strategy.startswith("cooperative"):
                assert not {one for one, _ in group.given}.intersection(group.members[1:])
    finally:
        group.end()
    assert group.faults == []
