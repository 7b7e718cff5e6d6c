"""doctor's checks of the machine, over made-up trees of /proc, /sys and /etc."""

import fcntl
import json
import mmap
import os
from pathlib import Path

import pytest

from wheeld.doctor import leftovers, machine as checks, systemd
from wheeld.doctor.machine import Finding
from wheeld.doctor.run import Diagnosis
from wheeld.resources.remains import INITIAL_PID_NAMESPACE
from wheeld_core import _native
from wheeld_core.views import dtype_of

MIB = 1 << 20


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def assert_bad(finding: Finding, status: str, *words: str) -> None:
    assert finding.status == status, finding
    assert finding.expected
    assert finding.advice
    text = " ".join((finding.found, finding.expected, finding.advice))
    for word in words:
        assert word in text, finding


# -- memory ----------------------------------------------------------------------------------------


def test_shm_room() -> None:
    assert checks.shm_room(100 * MIB, 90 * MIB, 50 * MIB, 30 * MIB, False).status == "ok"
    finding = checks.shm_room(64 * MIB, 40 * MIB, 50 * MIB, 30 * MIB, False)
    assert_bad(finding, "failure", "40.0 MiB free of 64.0 MiB", "50.0 MiB", "capacity")
    finding = checks.shm_room(64 * MIB, 60 * MIB, 50 * MIB, 30 * MIB, False)
    assert_bad(finding, "warning", "30.0 MiB for all slots and workers")
    assert checks.shm_room(100 * MIB, 40 * MIB, 50 * MIB, 30 * MIB, True).status == "ok"
    assert_bad(checks.shm_room(100 * MIB, 20 * MIB, 50 * MIB, 30 * MIB, True), "warning")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("tmpfs /dev/shm tmpfs rw,nosuid,nodev,noexec,size=1024k 0 0", "ok"),
        ("tmpfs /dev/shm tmpfs ro,relatime 0 0", "failure"),
        ("/dev/sda1 /dev/shm ext4 rw 0 0", "warning"),
        ("tmpfs /run tmpfs rw 0 0", "failure"),
        ("", "failure"),
        ("tmpfs /dev/shm tmpfs ro 0 0\ntmpfs /dev/shm tmpfs rw 0 0", "ok"),
    ],
)
def test_shm_mount(line: str, status: str) -> None:
    finding = checks.shm_mount(f"proc /proc proc rw 0 0\n{line}\n")
    assert finding.status == status


def subject(root: Path, cgroup: str) -> Path:
    put(root / "proc/7/cgroup", cgroup)
    return root / "proc/7"


def test_memory_limit(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    process = subject(tmp_path, "0::/a/b\n")
    assert checks.memory_limit(process, groups, MIB).status == "ok"
    put(groups / "a/b/memory.max", "max\n")
    put(groups / "memory.max", str(1000 * MIB))
    assert checks.memory_limit(process, groups, 100 * MIB).status == "ok"
    put(groups / "a/memory.max", str(150 * MIB))
    assert_bad(checks.memory_limit(process, groups, 100 * MIB), "warning", "150.0 MiB", "a/memory")
    assert_bad(checks.memory_limit(process, groups, 151 * MIB), "failure", "lower capacity")
    process = subject(tmp_path / "v1", "4:memory:/x\n3:cpu,cpuacct:/y\n")
    put(groups / "memory/x/memory.limit_in_bytes", str(9 * MIB))
    assert_bad(checks.memory_limit(process, groups, 10 * MIB), "failure", "9.0 MiB")
    put(groups / "memory/x/memory.limit_in_bytes", str(2**63 - 4096))
    assert checks.memory_limit(process, groups, 10 * MIB).status == "ok"


# -- limits ----------------------------------------------------------------------------------------

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max open files            1024                 4096                 files
Max locked memory         8388608              8388608              bytes
"""


def test_limits(tmp_path: Path) -> None:
    put(tmp_path / "limits", LIMITS)
    assert checks.soft_limit(tmp_path, "Max open files") == 1024
    assert checks.soft_limit(tmp_path, "Max locked memory") == 8388608
    assert checks.soft_limit(tmp_path, "Max file size") == -1
    assert checks.soft_limit(tmp_path / "none", "Max open files") == -1


def test_open_files() -> None:
    assert checks.open_files(1024, 64).status == "ok"
    assert checks.open_files(-1, 4000).status == "ok"
    assert_bad(checks.open_files(1024, 500), "warning", "1,024", "1,064 for 500 workers", "NOFILE")


def test_locked_memory() -> None:
    assert checks.locked_memory(-1, MIB).status == "ok"
    assert checks.locked_memory(MIB, MIB).status == "ok"
    assert_bad(checks.locked_memory(MIB - 1, MIB), "note", "LimitMEMLOCK")


def test_file_size() -> None:
    assert checks.file_size(-1, MIB).status == "ok"
    assert checks.file_size(MIB, MIB).status == "ok"
    assert_bad(checks.file_size(MIB - 1, MIB), "failure", "RLIMIT_FSIZE 1.0 MiB", "ulimit -f")


# -- time and processors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "status"),
    [("tsc", "ok"), ("kvm-clock", "ok"), ("arch_sys_counter", "ok"), ("hpet", "warning"),
     ("acpi_pm", "warning"), ("jiffies", "warning"), ("", "note")],
)  # fmt: skip
def test_clock_source(tmp_path: Path, current: str, status: str) -> None:
    folder = tmp_path / "devices/system/clocksource/clocksource0"
    put(folder / "current_clocksource", current + "\n")
    put(folder / "available_clocksource", "tsc hpet acpi_pm\n")
    finding = checks.clock_source(tmp_path)
    assert finding.status == status
    if status != "ok":
        assert_bad(finding, status, "tsc")


def test_timer_resolution() -> None:
    assert checks.timer_resolution(1e-9).status == "ok"
    assert_bad(checks.timer_resolution(0.004), "warning", "4,000,000 ns", "highres=off")


def test_processors(tmp_path: Path) -> None:
    groups, process = tmp_path / "cgroup", subject(tmp_path, "0::/a\n")
    assert checks.processors(4, process, groups).status == "ok"
    assert_bad(checks.processors(1, process, groups), "note", "1 usable")
    put(groups / "a/cpu.max", "max 100000\n")
    assert checks.processors(4, process, groups).status == "ok"
    put(groups / "cpu.max", "50000 100000\n")
    assert_bad(checks.processors(4, process, groups), "warning", "quota of 0.5", "throttled")
    process = subject(tmp_path / "v1", "3:cpu,cpuacct:/y\n")
    put(groups / "cpu,cpuacct/y/cpu.cfs_quota_us", "20000")
    put(groups / "cpu,cpuacct/y/cpu.cfs_period_us", "100000")
    assert_bad(checks.processors(4, process, groups), "warning", "quota of 0.2")
    put(groups / "cpu,cpuacct/y/cpu.cfs_quota_us", "-1")
    assert checks.processors(4, process, groups).status == "ok"


@pytest.mark.parametrize(
    ("release", "has_pidfd", "status"),
    [("6.1.0-9-amd64", True, "ok"), ("5.3.0", True, "ok"), ("5.2.99", True, "failure"),
     ("4.19.0", False, "failure"), ("5.10.0", False, "failure"), ("odd", True, "failure")],
)  # fmt: skip
def test_kernel(release: str, has_pidfd: bool, status: str) -> None:
    finding = checks.kernel(release, has_pidfd)
    assert finding.status == status
    if status != "ok":
        assert_bad(finding, status, release)


def test_pid_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_bad(checks.pid_namespace(tmp_path), "note", "unknown")
    namespace = put(tmp_path / "ns/pid", "")
    assert_bad(checks.pid_namespace(tmp_path), "note", "container", "workers must run in this")
    monkeypatch.setattr(checks, "INITIAL_PID_NAMESPACE", namespace.stat().st_ino)
    assert checks.pid_namespace(tmp_path).status == "ok"


# -- directories -----------------------------------------------------------------------------------


def test_runtime_directory(runtime_dir: Path) -> None:
    uid = os.getuid()
    base = runtime_dir / "run"
    assert checks.runtime_directory([base], "a", uid).status == "ok"  # it can be made
    base.mkdir()
    assert checks.runtime_directory([base], "a", uid).found == str(base / "a")
    (base / "a").mkdir(mode=0o700)
    assert checks.runtime_directory([base], "a", uid).status == "ok"
    assert_bad(checks.runtime_directory([base], "a", uid + 1), "failure", "not private to")
    (base / "a").chmod(0o755)
    assert_bad(checks.runtime_directory([base], "a", uid), "failure", "0755")
    (base / "a").chmod(0o750)
    assert checks.runtime_directory([base], "a", uid).status == "ok"
    deep = runtime_dir / ("d" * 90)
    assert_bad(checks.runtime_directory([deep], "a", uid), "failure", "107 fit")
    file = put(runtime_dir / "file", "")
    assert_bad(checks.runtime_directory([file], "a", uid), "failure", "Not a directory")
    missing = runtime_dir / "x" / "y" / "z"
    assert_bad(checks.runtime_directory([missing], "a", uid), "failure", "parent does not exist")
    assert checks.runtime_directory([missing, base], "b", uid).found == str(base / "b")
    last = Path(f"/tmp/wheeld-{uid}")
    assert_bad(checks.runtime_directory([missing, last], "t-none", uid), "note", "XDG_RUNTIME_DIR")


PREFIX = "wheeld-shop-0123456789ab-"


def segment(shm: Path, kind: str, **fields: int) -> None:
    config = {
        "capacity": 64, "max_workers": 1, "tick_ns": 1000, "wheel_bits": 1, "payload_bytes": 0,
        "virtual_clock": 1,
    }  # fmt: skip
    sizes = _native.geometry(**config)
    memories = [mmap.mmap(-1, sizes[f"{each}_bytes"]) for each in ("wheel", "slots", "registry")]
    _native.create(*memories, "boot-1", **config, origin_ns=0)
    data = bytearray(memories[0 if kind == "wheel" else 2])
    for name, value in fields.items():
        offset = dtype_of("head").fields[name][1]  # type: ignore[index]
        data[offset : offset + 4] = value.to_bytes(4, "little")
    (shm / f"{PREFIX}{kind}").write_bytes(data)


def test_left_segments(tmp_path: Path) -> None:
    shm, proc = tmp_path / "shm", tmp_path / "proc"
    shm.mkdir()
    put(proc / "12/maps", "7f00-7f01 rw-s 0 00:01 5 /dev/shm/other\n")
    put(proc / f"{os.getpid()}/maps", f"7f00-7f01 rw-s 0 00:01 5 /dev/shm/{PREFIX}wheel\n")

    def left(boot: str, uid: int = os.getuid()) -> Finding:
        return leftovers.segments(shm, proc, boot, uid, INITIAL_PID_NAMESPACE)

    put(shm / "wheeldish", "")
    assert left("boot-1").status == "ok"
    segment(shm, "registry")
    assert_bad(left("boot-1"), "warning", PREFIX, "incomplete", "--fresh")
    segment(shm, "wheel")
    finding = left("boot-1")
    assert_bad(finding, "warning", "a dead daemon 'shop'", "(2, 0.0 MiB)", "--name shop")
    for wanted, status in (("shop", "warning"), ("other", "note")):
        found = leftovers.segments(
            shm, proc, "boot-1", os.getuid(), INITIAL_PID_NAMESPACE, wanted=wanted
        )
        assert found.status == status
    assert_bad(left("boot-2"), "warning", "of an earlier boot")
    segment(shm, "wheel", layout_version=1)
    assert_bad(left("boot-1"), "warning", "layout version 1 of another")
    segment(shm, "wheel", magic=5)
    assert "not wheeld's" in left("boot-1").found
    assert left("boot-1", uid=12345).status == "ok"  # they are another user's
    put(proc / "13/maps", f"7f00-7f01 rw-s 0 00:01 5 /dev/shm/{PREFIX}slots\n")
    assert left("boot-1").status == "ok"


def test_left_directories(tmp_path: Path) -> None:
    finding = leftovers.directories([tmp_path / "none", tmp_path], lambda path: False)
    assert finding.status == "ok"
    put(tmp_path / "other/file", "")
    put(tmp_path / "shop/daemon.json", "{}")
    put(tmp_path / "bar/control.sock", "")
    finding = leftovers.directories([tmp_path], lambda path: path.name == "bar")
    assert_bad(finding, "note", str(tmp_path / "shop"), "wheeld start --name shop")
    assert leftovers.directories([tmp_path], lambda path: True).found == "none; 2 daemons answer"
    with put(tmp_path / "shop/clock.lock", "").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = leftovers.directories([tmp_path], lambda path: False)
        assert_bad(finding, "failure", "a clock runs", str(tmp_path / "shop"))


# -- systemd ---------------------------------------------------------------------------------------


def test_remove_ipc(tmp_path: Path) -> None:
    assert systemd.remove_ipc(tmp_path, 1000, "ann").status == "ok"  # no systemd
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert systemd.remove_ipc(tmp_path, 999, "wheeld").status == "ok"
    assert_bad(systemd.remove_ipc(tmp_path, 1000, "ann"), "warning", "ann (uid 1000)", "linger")
    put(tmp_path / "etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n")
    assert systemd.remove_ipc(tmp_path, 1000, "ann").status == "warning"
    put(tmp_path / "etc/systemd/logind.conf", "[Login]\nRemoveIPC=no\n")
    assert systemd.remove_ipc(tmp_path, 1000, "ann").status == "ok"
    put(tmp_path / "usr/lib/systemd/logind.conf.d/50.conf", "[Login]\nRemoveIPC = yes\n")
    assert systemd.remove_ipc(tmp_path, 1000, "ann").status == "warning"
    put(tmp_path / "etc/systemd/logind.conf.d/50.conf", "[Login]\n")  # covers the other
    assert systemd.remove_ipc(tmp_path, 1000, "ann").status == "ok"
    put(tmp_path / "etc/systemd/logind.conf.d/60.conf", "RemoveIPC=1\n")
    assert systemd.remove_ipc(tmp_path, 1000, "ann").status == "warning"
    put(tmp_path / "var/lib/systemd/linger/ann", "")
    assert systemd.remove_ipc(tmp_path, 1000, "ann").status == "ok"


def test_unit_of() -> None:
    path = "0::/system.slice/system-wheeld.slice/wheeld@default.service\n"
    assert systemd.unit_of(path) == "wheeld@default.service"
    assert systemd.unit_of("1:name=systemd:/system.slice/wheeld@a.service/sub\n") == (
        "wheeld@a.service"
    )
    assert systemd.unit_of("0::/user.slice/user-0.slice/session-1.scope\n") is None


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("DynamicUser=yes", "failure", "implies RemoveIPC"),
        ("RemoveIPC=true", "failure", "RemoveIPC=no"),
        ("PrivateUsers=yes", "warning", "nobody"),
        ("ProtectProc=invisible", "warning", "/proc/PID/stat"),
        ("ProcSubset=pid", "warning", "/proc/PID/stat"),
        ("RuntimeDirectory=wheeld/a", "warning", "RuntimeDirectoryPreserve=yes"),
        ("RuntimeDirectory=wheeld/a\nRuntimeDirectoryPreserve=restart", "ok", ""),
        ("LimitNOFILE=100:200", "warning", "192 or more"),
        ("LimitNOFILE=infinity", "ok", ""),
        ("RemoveIPC=yes\nRemoveIPC=no", "ok", ""),
    ],
)
def test_unit_settings(tmp_path: Path, text: str, status: str, words: str) -> None:
    unit = "wheeld@a.service"
    put(tmp_path / "etc/systemd/system/wheeld@.service", f"[Service]\n{text}\n")
    finding = systemd.unit_settings(tmp_path, unit, 64)
    assert finding.status == status, finding
    if status != "ok":
        assert_bad(finding, status, words, "systemctl edit wheeld@a.service")


def test_unit_drop_ins(tmp_path: Path) -> None:
    assert systemd.unit_settings(tmp_path, None, 64).status == "ok"
    assert systemd.unit_settings(tmp_path, "x.service", 64).status == "note"
    put(tmp_path / "usr/lib/systemd/system/wheeld@.service", "[Service]\nRemoveIPC=no\n")
    assert systemd.unit_settings(tmp_path, "wheeld@a.service", 64).status == "ok"
    put(tmp_path / "etc/systemd/system/wheeld@.service.d/10.conf", "[Service]\nRemoveIPC=yes\n")
    assert systemd.unit_settings(tmp_path, "wheeld@a.service", 64).status == "failure"
    put(tmp_path / "etc/systemd/system/wheeld@a.service.d/20.conf", "[Service]\nRemoveIPC=no\n")
    assert systemd.unit_settings(tmp_path, "wheeld@a.service", 64).status == "ok"
    assert systemd.unit_settings(tmp_path, "wheeld@b.service", 64).status == "failure"


def test_our_own_unit_is_well() -> None:
    text = (Path(__file__).parents[2] / "systemd/wheeld@.service").read_text()
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    settings = {key.strip().lower(): value.strip() for key, _, value in lines}
    assert systemd.judge_unit("wheeld@a.service", settings, 64).status == "ok"


def test_json_round_trip() -> None:
    findings = [checks.ok("a", "fine"), Finding("b", "note", "x"), Finding("c", "warning", "y")]
    diagnosis = Diagnosis("n", None, findings)
    assert json.loads(json.dumps(diagnosis.as_dict()))["status"] == "warning"
    assert [finding.name for finding in diagnosis.bad()] == ["c"]
    assert diagnosis.summary() == "n: 1 warning: c; 1 note: b (3 checks)"
    assert "all well" in Diagnosis("n", None, findings[:1]).summary()
