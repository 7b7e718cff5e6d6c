"""The C client: built, installed and used as a program of its own does, beside a Python worker."""

import ctypes
import gc
import json
import os
import re
import select
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import c_client
import wheeld
from c_client import (
    FORKED,
    FULL,
    INVALID,
    MISMATCH,
    NOT_PERMITTED,
    NOT_RUNNING,
    OVER,
    CTimers,
    Refused,
    payload,
)
from common_fixtures import daemon_process, embedded
from daemons import Daemon, status_of, until
from programs import ROOT
from proofs import sanitize
from seeds import SEED
from wheeld_client import connect

pytestmark = pytest.mark.skipif(not c_client.TOOLS, reason="no make, pkg-config or C compiler")

SECOND = 10**9
LONG = 60.0

wheel_daemon = embedded(capacity=8192, max_workers=8, payload_bytes=16)
small_daemon = embedded("function", capacity=64, max_workers=1)
real_daemon = daemon_process()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("c")
    c_client.make(f"BUILD={place}/build", f"PREFIX={place}/usr", "all", "install")
    return place


@pytest.fixture(scope="module")
def library(installed: Path) -> Path:
    return installed / "usr/lib/libwheeld.so.0"


@pytest.fixture
def timers(library: Path, wheel_daemon: str) -> Iterator[CTimers]:
    with CTimers(library, wheel_daemon) as timers:
        yield timers


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.result, str(refused.value)


def built(installed: Path, source: Path) -> Path:
    found = {**os.environ, "PKG_CONFIG_PATH": str(installed / "usr/lib/pkgconfig")}
    command = ["pkg-config", "--cflags", "--libs", "wheeld"]
    flags = subprocess.run(command, env=found, check=True, capture_output=True, text=True).stdout
    program = installed / source.stem
    cc = shlex.split(sanitize.compiler() or "cc")
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    rpath = f"-Wl,-rpath,{installed}/usr/lib"
    command = [*cc, *warnings, str(source), *shlex.split(flags), rpath, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def test_account_beside_python(installed: Path, wheel_daemon: str) -> None:
    print(f"seed {SEED}")
    program = built(installed, Path(__file__).parent / "player.c")
    rng = np.random.default_rng(SEED)
    with connect(wheel_daemon, worker="python") as timers:
        foreign = timers.schedule(LONG)
        words = [str(program), wheel_daemon, "3000", str(SEED), str(foreign)]
        player = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        ids = timers.schedule_many(rng.uniform(0, 0.3, 2000), np.arange(2000, dtype=np.uint64))
        won = timers.cancel_many(ids[rng.random(2000) < 0.3])
        due, got = 2000 - int(won.sum()), []
        until(lambda: got.extend(timers.poll(0.1)) or len(got) >= due, "all Python timers")
        printed, _ = player.communicate(timeout=LONG)
        got.extend(timers.poll())
        assert timers.cancel(foreign) is False
    assert player.returncode == 0
    account = json.loads(printed)
    assert account["scheduled"] == 3000 == account["received"] + account["cancelled"], account
    assert min(account["cancelled"], account["moved"]) > 100, account
    assert (account["early"], account["twice"], account["strange"]) == (0, 0, 0), account
    assert account["foreign"] == 1
    assert len({int(event["cookie"]) for event in got}) == len(got) == due
    assert all(event["fired"] >= event["deadline"] for event in got)
    assert status_of(wheel_daemon)["pending"] == 0


def test_example(installed: Path, wheel_daemon: str) -> None:
    words = [str(installed / "build/example"), wheel_daemon]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["cookie 1", "cookie 2"]


def test_program_of_the_page(installed: Path, wheel_daemon: str) -> None:
    page = (ROOT / "docs/how-to/other-languages.md").read_text()
    (shown,) = re.findall(r"```c\n(.*?)```", page, re.S)
    source = installed / "shown.c"
    source.write_text(shown.replace('"default"', json.dumps(wheel_daemon)))
    done = subprocess.run([built(installed, source)], capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (0, "1 event, cookie 7\n"), done.stderr


def test_periodic_with_payload(timers: CTimers) -> None:
    made = timers.schedule(0, 5, interval_ns=SECOND // 100, payload=b"tick", payload_size=4)
    for _ in range(3):
        (event,) = timers.poll(LONG, 1)
        assert (event.id, event.cookie, payload(event)) == (made, 5, b"tick")
    timers.cancel(made)
    assert timers.poll(0.05) == []


def test_payloads_of_the_heap(timers: CTimers) -> None:
    sizes = [0, 5, 16, 17, 100, 5000, 65_536]
    for cookie, size in enumerate(sizes):
        timers.schedule(0, cookie, payload=bytes([cookie]) * size, payload_size=size)
    found = dict[int, bytes]()
    while len(found) < len(sizes):
        found |= {event.cookie: payload(event) for event in timers.poll(LONG, 2)}
    assert found == {cookie: bytes([cookie]) * size for cookie, size in enumerate(sizes)}


def test_event_loop(timers: CTimers) -> None:
    fd = timers.fileno()
    assert select.select([fd], [], [], 0)[0] == []
    for cookie in range(3):
        timers.schedule(SECOND // 50, cookie)
    seen = []
    while len(seen) < 3:
        assert select.select([fd], [], [], LONG)[0] == [fd]
        seen += [event.cookie for event in timers.poll(0, 1)]
    assert sorted(seen) == [0, 1, 2]
    # a byte may still come that was on its way when its event was read
    until(lambda: timers.poll() == [] and not select.select([fd], [], [], 0)[0], "silence")


def test_bad_input(timers: CTimers, wheel_daemon: str) -> None:
    before = status_of(wheel_daemon)["pending"]
    assert refusal(lambda: timers.schedule(-1)) == (
        INVALID,
        "delay_ns is -1 ns; expected 0 or more",
    )
    assert refusal(lambda: timers.schedule(1, interval_ns=-5))[0] == INVALID
    long = b"x" * 65_537
    result, said = refusal(lambda: timers.schedule(1, payload=long, payload_size=65_537))
    assert (result, "65537 bytes; this wheel holds 65536" in said) == (INVALID, True)
    assert refusal(lambda: timers.schedule(1, payload=None, payload_size=3))[0] == INVALID
    for never in (0, 2**64 - 1, 12345):
        assert refusal(lambda never=never: timers.cancel(never))[0] == OVER
        assert refusal(lambda never=never: timers.reschedule(never, 1))[0] == OVER
    made = timers.schedule(2**63 - 1)  # it parks at the end of time
    assert refusal(lambda: timers.reschedule(made, -1))[0] == INVALID
    timers.cancel(made)
    assert refusal(lambda: timers.cancel(made))[0] == OVER
    assert status_of(wheel_daemon)["pending"] == before


def test_another_workers_timer_is_moved(timers: CTimers, wheel_daemon: str) -> None:
    with connect(wheel_daemon) as other:
        foreign = other.schedule(LONG)
        timers.reschedule(foreign, 1)
        assert other.poll(LONG)["timer_id"].tolist() == [foreign]


@pytest.mark.parametrize(
    ("options", "result", "word"),
    [
        ({"worker": 'a "name"\n', "on_death": "burn"}, INVALID, "burn"),
        ({"on_death": "keep"}, INVALID, "name"),
        ({"on_death": "reroute"}, INVALID, "group"),
        ({"worker": "n" * 600}, INVALID, "too long"),
        ({"worker": "n" * 64}, INVALID, "63"),
    ],
)
def test_bad_options(
    library: Path, wheel_daemon: str, options: dict[str, str], result: int, word: str
) -> None:
    got, said = refusal(lambda: CTimers(library, wheel_daemon, **options))
    assert (got, word in said) == (result, True), said


def test_names_arrive(library: Path, wheel_daemon: str) -> None:
    name = 'ünï "q" \\ 時'
    with CTimers(library, wheel_daemon, worker=name):
        assert name in [worker["name"] for worker in status_of(wheel_daemon)["workers"]]
    assert name not in [worker["name"] for worker in status_of(wheel_daemon)["workers"]]


def test_full_wheel(library: Path, small_daemon: str) -> None:
    with CTimers(library, small_daemon) as timers:
        ids = [timers.schedule(60 * SECOND, cookie) for cookie in range(64)]
        assert refusal(lambda: timers.schedule(60 * SECOND))[0] == FULL
        timers.cancel(ids.pop())
        ids.append(timers.schedule(0, 64))
        assert [event.cookie for event in timers.poll(LONG)] == [64]


def test_forked_child(timers: CTimers) -> None:
    made = timers.schedule(60 * SECOND)
    child = os.fork()
    if child == 0:
        forked = -1
        try:
            timers.cancel(made)
        except Refused as refused:
            forked = refused.result
        timers.close()
        os._exit(forked)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == FORKED
    timers.cancel(made)


def test_nothing_stays(library: Path, wheel_daemon: str) -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("/dev/shm/wheeld-")

    CTimers(library, wheel_daemon).close()
    gc.collect()  # it may close descriptors of other tests
    before = held()
    for _ in range(3):
        CTimers(library, wheel_daemon).close()
        assert refusal(lambda: CTimers(library, wheel_daemon, on_death="burn"))[0] == INVALID
    assert held() == before


def test_no_daemon(library: Path, tmp_path: Path) -> None:
    for name in (str(tmp_path / "none"), "no-such-daemon"):
        result, said = refusal(lambda name=name: CTimers(library, name))
        assert (result, "wheeld start" in said) == (NOT_RUNNING, True), said
    assert refusal(lambda: CTimers(library, ""))[0] == INVALID


def test_directory_of_others(library: Path, tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    (place / "control.sock").touch()
    assert refusal(lambda: CTimers(library, str(place)))[0] == NOT_PERMITTED


def test_another_version(tmp_path: Path, wheel_daemon: str) -> None:
    for part in ("client/c", "core/include"):
        shutil.copytree(ROOT / part, tmp_path / part)
    header = tmp_path / "core/include/wheeld/shared/layout.h"
    text, changed = re.subn(r"(WH_LAYOUT_VERSION) \d+u", r"\1 999u", header.read_text())
    assert changed == 1
    header.write_text(text)
    c_client.make(f"BUILD={tmp_path}/build", sources=tmp_path / "client/c")
    other = tmp_path / "build/libwheeld.so.0"
    result, said = refusal(lambda: CTimers(other, wheel_daemon))
    assert (result, "version 999" in said) == (MISMATCH, True), said


def test_restarted_supervisor(library: Path, real_daemon: Daemon) -> None:
    with CTimers(library, str(real_daemon.directory), worker="survivor") as timers:
        timers.schedule(SECOND // 2, 1)
        kept = timers.schedule(60 * SECOND, 2)
        assert real_daemon.process is not None
        real_daemon.process.kill()
        real_daemon.process.wait()
        timers.schedule(0, 3)  # into the rings of a clock that is away
        real_daemon.start()
        seen: list[int] = []
        until(lambda: seen.extend(e.cookie for e in timers.poll(0.1)) or len(seen) == 2, "both")
        assert sorted(seen) == [1, 3]
        (worker,) = status_of(real_daemon.directory)["workers"]
        assert worker["name"] == "survivor"
        timers.cancel(kept)
    assert status_of(real_daemon.directory)["workers"] == []


def test_close_after_a_restart(library: Path, real_daemon: Daemon) -> None:
    timers = CTimers(library, str(real_daemon.directory))
    assert real_daemon.process is not None
    real_daemon.process.kill()
    real_daemon.process.wait()
    real_daemon.start()
    timers.close()
    assert status_of(real_daemon.directory)["workers"] == []


def test_stopped_daemon(library: Path, wheel_server: wheeld.ForkServer) -> None:
    with wheel_server.embedded(capacity=1024) as daemon:
        timers = CTimers(library, daemon)
    assert refusal(lambda: timers.schedule(1))[0] == NOT_RUNNING
    result, said = refusal(lambda: timers.poll(LONG))
    assert (result, "has stopped" in said) == (NOT_RUNNING, True), said
    timers.close()


def test_messages(library: Path) -> None:
    texts = [c_client.load(library).wheeld_result_text(result) for result in range(12)]
    assert len(set(texts)) == 12
    assert c_client.load(library).wheeld_result_text(12) == b"no such result"
    assert ctypes.sizeof(c_client.Event) == 48
