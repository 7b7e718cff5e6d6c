"""Four gunicorn workers under load, while their daemon is restarted, and killed and started.

    WHEELD_RESTARTS=20 python -m pytest tests/daemon/test_restart_services.py -s

does so twenty times each, and prints for how long no timer fired.
"""

from collections.abc import Callable

import pytest

import service_load
from common_fixtures import daemon_process
from daemons import Daemon

for _needed in service_load.NEEDED:
    pytest.importorskip(_needed)


daemon = daemon_process(capacity=1 << 17, max_workers=8)


def restart(daemon: Daemon) -> None:
    done = daemon.command("restart")
    assert done.returncode == 0, done.stderr


def kept(daemon: Daemon) -> None:
    done = daemon.command("stop", "--keep")
    assert done.returncode == 0, done.stderr
    assert daemon.wait() == 0
    daemon.start()


def killed(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


@pytest.mark.parametrize("fault", [restart, kept, killed])
def test_no_service_notices(daemon: Daemon, fault: Callable[[Daemon], None]) -> None:
    account = service_load.suffer(lambda: fault(daemon), daemon.directory, daemon.base)
    print(f"\n{fault.__name__} x {account.rounds}: {account.told()}")
    account.check()
