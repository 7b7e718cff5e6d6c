"""The checks of `wheeld doctor` on systemd: logind's RemoveIPC, and the unit of the daemon."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from wheeld.doctor.machine import FIRST_USER_ID, Finding, ok
from wheeld.processes import descriptors

CONFIGURATION = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
"""Where systemd looks, most important first, below the root."""
_YES = ("yes", "true", "1", "on")


def _settings(files: list[Path]) -> dict[str, str]:
    """The last value of each key, by lower-case name, over files in the order in which systemd
    reads them."""
    found = {}
    for path in files:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for line in path.read_text("utf-8").splitlines():
                key, equals, value = line.partition("=")
                if equals and not line.lstrip().startswith(("#", ";")):
                    found[key.strip().lower()] = value.strip()
    return found


def _files(root: Path, name: str, drop_ins: list[str]) -> list[Path]:
    """The main file called `name`, and its drop-ins, in the order in which systemd reads them."""
    places = [root / place / "systemd" for place in CONFIGURATION]
    main = next((place / name for place in places if (place / name).is_file()), None)
    by_name: dict[str, Path] = {}
    for place in reversed(places):
        for folder in drop_ins:
            for path in sorted((place / folder).glob("*.conf")):
                by_name[path.name] = path
    extra = [by_name[key] for key in sorted(by_name)]
    return [*([main] if main else []), *extra]


def remove_ipc(root: Path, uid: int, user: str) -> Finding:
    """Check that logind does not remove the segments when the user logs out."""
    name = "RemoveIPC"
    if not (root / "run/systemd/system").is_dir():
        return ok(name, "systemd does not run here")
    if uid < FIRST_USER_ID:
        return ok(name, f"uid {uid} is a system user: its segments are left alone")
    settings = _settings(_files(root, "logind.conf", ["logind.conf.d"]))
    value = settings.get("removeipc", "yes").lower()
    if value not in _YES:
        return ok(name, f"RemoveIPC={value}")
    if (root / "var/lib/systemd/linger" / user).exists():
        return ok(name, f"RemoveIPC=yes, but {user} lingers")
    return Finding(
        name, "warning", f"RemoveIPC=yes for {user} (uid {uid})", "RemoveIPC=no",
        "at this user's last logout logind removes the wheel from /dev/shm: set RemoveIPC=no in "
        "/etc/systemd/logind.conf, run the daemon as a system user, or `loginctl enable-linger`",
    )  # fmt: skip


def unit_of(cgroup: str) -> str | None:
    match = re.search(r"/([^/\s]+\.service)(?:/|\s|$)", cgroup)
    return match[1].replace("\\x2d", "-") if match else None


def unit_settings(root: Path, unit: str | None, max_workers: int) -> Finding:
    """Check that the unit keeps the segments, sees its clients, and allows enough descriptors."""
    name = "systemd unit"
    if unit is None:
        return ok(name, "the daemon is not run by a unit")
    template = re.sub(r"@[^.]*", "@", unit)
    names = [unit] if template == unit else [unit, template]
    drop_ins = [f"system/{n}.d" for n in reversed(names)] + ["system/service.d"]
    files: list[Path] = []
    for each in names:
        files = _files(root, f"system/{each}", drop_ins)
        if any(path.name == each for path in files):
            break
    if not files:
        return Finding(name, "note", f"{unit}: its unit file was not found", "readable settings")
    return judge_unit(unit, _settings(files), max_workers)


def judge_unit(unit: str, settings: dict[str, str], max_workers: int) -> Finding:
    """The same check, on settings by lower-case key."""

    def has(key: str, *values: str) -> bool:
        return settings.get(key, "").lower() in values

    failures, warnings = [], []
    if has("dynamicuser", *_YES):
        failures.append(("DynamicUser=yes", "a static user: it implies RemoveIPC=yes"))
    if has("removeipc", *_YES):
        failures.append(
            ("RemoveIPC=yes", "RemoveIPC=no; otherwise a stop removes the workers' memory")
        )
    if has("privateusers", *_YES, "self", "identity"):
        warnings.append(
            ("PrivateUsers=", "none; otherwise clients of other users appear as `nobody`")
        )
    if has("protectproc", "invisible", "noaccess") or has("procsubset", "pid"):
        warnings.append(
            ("ProtectProc= or ProcSubset=", "none, because the daemon reads /proc/PID/stat")
        )
    if settings.get("runtimedirectory") and not has("runtimedirectorypreserve", "restart", *_YES):
        warnings.append(
            ("RuntimeDirectory= without RuntimeDirectoryPreserve=",
             "RuntimeDirectoryPreserve=yes, because workers look for the socket in the same place")
        )  # fmt: skip
    limit = settings.get("limitnofile", "").partition(":")[0]
    if limit.isdigit() and int(limit) < descriptors.needed(max_workers):
        warnings.append((f"LimitNOFILE={limit}", f"{descriptors.needed(max_workers)} or more"))
    problems = failures + warnings
    if not problems:
        return ok("systemd unit", unit)
    return Finding(
        "systemd unit",
        "failure" if failures else "warning",
        f"{unit}: " + ", ".join(found for found, _ in problems),
        "; ".join(expected for _, expected in problems),
        f"systemctl edit {unit}",
    )
