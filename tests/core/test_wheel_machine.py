"""The wheel and a sorted-list oracle, driven by the same random calls under virtual time."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from local_wheel import MS
from wheel_machine import WheelMachine


@pytest.mark.parametrize(
    ("tick", "bits"),
    [(MS, 6), (MS, 1), (1, 3), (1000, 8), (10 * MS, 12), (7_777_777, 2), (3600 * 10**9, 6)],
)
def test_wheel_agrees_with_oracle(tick: int, bits: int) -> None:
    machine = type(f"Machine{tick}x{bits}", (WheelMachine,), {"tick": tick, "bits": bits})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
