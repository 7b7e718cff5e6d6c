"""The seed of a run, for modules that need it before any fixture is there."""

import os
import secrets
from typing import Final

# One seed for the controller and all its pytest-xdist workers, which inherit the environment.
SEED: Final = int(os.environ.setdefault("WHEELD_TEST_SEED", str(secrets.randbits(32))))
