"""Acts on the unit under the real systemd: run inside the container, as root.

Writes what it saw, one JSON object a line, to `found`; a scene that fails says so in its own line,
and the others are played all the same.
"""

import json
import os
import re
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import service_load
from systemd_container import OUT, PROGRAMS
from wheeld_client import connect
from wheeld_core.control import Connection

UNIT: Final = "wheeld@default"
DIRECTORY: Final = Path("/run/wheeld/default")
TOML: Final = Path("/etc/wheeld/default.toml")
OPTIONS: Final = {
    "hang_after": "1s",
    "keep_for": "60s",
    "capacity": 1 << 17,
    "state_dir": "/var/lib/wheeld/default",
    "log_format": "journald",
}
WATCHDOG_SECONDS: Final = 3
KILLS: Final = 8
LONG: Final = 60.0


def systemctl(*arguments: str) -> int:
    return subprocess.run(["systemctl", *arguments]).returncode


def shown(name: str) -> str:
    command = ["systemctl", "show", "--value", "--property", name, UNIT]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def until(holds: Callable[[], Any], what: str) -> Any:
    give_up = time.monotonic() + LONG
    while not (found := holds()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"still not: {what}")
        time.sleep(0.01)
    return found


def main_pid() -> int:
    return int(until(lambda: int(shown("MainPID") or 0), "a main process"))


def children(pid: int) -> dict[str, int]:
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it has just ended
            found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
    return found


def status() -> dict[str, Any] | None:
    try:
        connection = Connection(DIRECTORY, 5.0)
    except OSError:
        return None
    try:
        answer: dict[str, Any] = connection.request("status")["status"]
        return answer
    except OSError:
        return None
    finally:
        connection.close()


def other_main(than: int) -> int:
    return int(until(lambda: (pid := main_pid()) != than and pid, "another main process"))


def other_clock(pid: int, than: int) -> None:
    until(lambda: children(pid).get("wheeld-clock") not in (None, than), "another clock")


def serving(pid: int) -> None:
    until(lambda: (s := status()) and s["pid"] == pid and s["clock_ok"], f"{pid} serves")


def segments() -> list[str]:
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith("wheeld-"))


def wheel() -> str:
    return next(name for name in segments() if name.endswith("-wheel"))


def configure(**changed: Any) -> None:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**OPTIONS, **changed}.items()]
    TOML.write_text("\n".join(lines) + "\n")


@contextmanager
def worker(name: str, found: dict[str, Any]) -> Iterator[None]:
    process = subprocess.Popen(
        ["/opt/wheeld/bin/python", str(PROGRAMS / "systemd_worker.py"), name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user="wheeld", group="wheeld",
        extra_groups=[], cwd="/",
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
        process.stdin.close()
        readable, _, _ = select.select([process.stdout], [], [], 2 * LONG)
        found["account"] = json.loads(process.stdout.readline()) if readable else "it hangs"
    finally:
        process.kill()
        process.wait()


def start(found: dict[str, Any]) -> None:
    found["user"] = subprocess.run(["id", "-un", "wheeld"], capture_output=True, text=True).stdout
    found["rc"] = systemctl("start", UNIT)
    found["active"], found["type"] = shown("ActiveState"), shown("Type")
    pid = main_pid()
    found["owner"] = os.stat(f"/proc/{pid}").st_uid != 0
    found["answers"] = status() is not None
    said = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", UNIT], capture_output=True, text=True
    )
    score = re.search(r"exposure level for \S+: ([0-9.]+)", said.stdout)
    found["exposure"] = float(score[1]) if score else said.stdout + said.stderr


def hang_up(found: dict[str, Any]) -> None:
    pid, before = main_pid(), wheel()
    with worker("hangup", found):
        configure(keep_for="71s")
        os.kill(pid, signal.SIGHUP)
        until(lambda: _keep_for() == 71.0, "keep_for of the changed file")
    found["same"] = main_pid() == pid and wheel() == before


def reload(found: dict[str, Any]) -> None:
    pid, before = main_pid(), wheel()
    with worker("reload", found):
        configure(keep_for="72s")
        found["rc"] = systemctl("reload", UNIT)
        until(lambda: _keep_for() == 72.0, "keep_for of the changed file")
    found["same"] = main_pid() == pid and wheel() == before


def _keep_for() -> float:
    with connect("default") as timers:
        return timers.keep_for


def stray_signals(found: dict[str, Any]) -> None:
    pid, before = main_pid(), wheel()
    processes = {"supervisor": pid, **children(pid)}
    with worker("signals", found):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM):
            for process in processes.values():
                os.kill(process, number)
        serving(pid)
    found["same"] = {"supervisor": main_pid(), **children(pid)} == processes and wheel() == before


def journal(found: dict[str, Any]) -> None:
    subprocess.run(["journalctl", "--sync"], check=True)
    command = ["journalctl", "--no-pager", "--output=json", "WHEELD_DAEMON=default"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    entries = [json.loads(line) for line in said.splitlines()]
    found["units"] = sorted({entry["_SYSTEMD_UNIT"] for entry in entries})
    found["identifiers"] = sorted({entry["SYSLOG_IDENTIFIER"] for entry in entries})
    found["others"] = sum("WHEELD_WORKER" not in entry for entry in entries)
    found["about"] = [
        entry["MESSAGE"] for entry in entries if entry.get("WHEELD_WORKER") == "hangup"
    ]


def kills(found: dict[str, Any]) -> None:
    before, restarts = wheel(), int(shown("NRestarts"))
    with worker("kills", found):
        last = 0
        for number in range(KILLS):
            last = other_main(last)
            if number % 2:
                serving(last)
            os.kill(last, signal.SIGKILL)
        serving(other_main(last))
    found["restarts"] = int(shown("NRestarts")) - restarts
    found["active"] = shown("ActiveState")
    found["same"] = wheel() == before


def clock(found: dict[str, Any]) -> None:
    pid = main_pid()
    with worker("clock", found):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            old = children(pid)["wheeld-clock"]
            os.kill(old, number)
            other_clock(pid, old)
            serving(pid)
    found["same"] = main_pid() == pid


def watchdog(found: dict[str, Any]) -> None:
    restarts, pid, before = int(shown("NRestarts")), main_pid(), wheel()
    with worker("watchdog", found):
        os.kill(pid, signal.SIGSTOP)
        serving(other_main(pid))
    found["restarts"] = int(shown("NRestarts")) - restarts
    found["same"] = wheel() == before


def restarts(found: dict[str, Any]) -> None:
    found["rc"] = []

    def restart() -> None:
        pid = main_pid()
        found["rc"].append(systemctl("restart", UNIT))
        serving(other_main(pid))

    found["load"] = asdict(service_load.suffer(restart, DIRECTORY, OUT, user="wheeld"))
    found["active"] = shown("ActiveState")


def kills_under_load(found: dict[str, Any]) -> None:
    before, earlier = wheel(), int(shown("NRestarts"))

    def kill() -> None:
        os.kill(pid := main_pid(), signal.SIGKILL)
        serving(other_main(pid))

    found["load"] = asdict(service_load.suffer(kill, DIRECTORY, OUT, user="wheeld"))
    found["restarts"] = int(shown("NRestarts")) - earlier
    found["same"] = wheel() == before


def stop(found: dict[str, Any]) -> None:
    found["rc"] = systemctl("stop", UNIT)
    found["result"], found["left"] = shown("Result"), segments()
    journal = ["journalctl", "--unit", UNIT, "--no-pager", "--output=cat"]
    said = subprocess.run(journal, capture_output=True, text=True).stdout
    (OUT / "journal").write_text(said)
    found["odd"] = re.findall(r"(?i).*(?:traceback|EPERM|Operation not permitted).*", said)


SCENES: Final = (
    *(start, hang_up, reload, stray_signals, journal, kills, clock, watchdog),
    *(restarts, kills_under_load, stop),
)


def main() -> None:
    configure()
    drop_in = Path(f"/run/systemd/system/{UNIT}.service.d/watchdog.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\n")
    systemctl("daemon-reload")
    with (OUT / "found").open("a", buffering=1) as file:
        for scene in SCENES:
            found: dict[str, Any] = {"scene": scene.__name__}
            began = time.monotonic()
            try:
                scene(found)
            except Exception:
                found["failed"] = traceback.format_exc()
            found["seconds"] = round(time.monotonic() - began, 1)
            file.write(json.dumps(found) + "\n")
    systemctl("poweroff")


if __name__ == "__main__":
    main()
