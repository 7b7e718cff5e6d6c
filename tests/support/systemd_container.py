"""Boots a real systemd as PID 1 in a container, with wheeld in it as systemd/README.md says.

The container's root is an overlay over this machine's, in a tmpfs and a mount namespace of their
own: nothing of it is left when the program ends, however it ends. Run as a program: it is in that
namespace then, and becomes systemd-nspawn.
"""

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from wheeld.cli.service import plan

CHECKOUT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = ("systemd-nspawn", "unshare", "mount", "chroot", "ldconfig", "systemd-sysusers")
OUT: Final = Path("/srv/out")
"""Where the container sees the directory that `booted` was given."""
PROGRAMS: Final = Path("/srv/tests")
"""Where it sees the modules of tests/support/ that were asked for."""
_INTERPRETER: Final = "opt/interpreter"
_LIBRARIES: Final = "opt/libraries"
_PACKAGES: Final = (
    *("wheeld", "core/wheeld_core", "client/wheeld_client", "pipeline/wheeld_pipeline"),
)
_SCENE: Final = """[Unit]
After=basic.target
[Service]
Type=exec
Environment=WHEELD_RESTARTS={rounds}
ExecStart=/opt/wheeld/bin/python {program}
StandardOutput=append:{out}/said
StandardError=append:{out}/said
"""


def obstacle() -> str | None:
    if os.getuid() != 0:
        return "only root can boot a container"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)} (Debian: systemd-container)"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "this machine has no systemd to boot"
    hierarchies = ("systemd", "cgroup.controllers")  # v1 and hybrid; v2
    if not any(Path("/sys/fs/cgroup", name).exists() for name in hierarchies):
        return "there are no control groups that systemd could use"
    probe = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PROBE]
    done = subprocess.run(probe, capture_output=True, text=True)
    return f"no overlay file system: {done.stderr.strip()}" if done.returncode else None


_PROBE: Final = (
    "mount -t tmpfs tmpfs /mnt && mkdir /mnt/up /mnt/work /mnt/root && "
    "mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root"
)


@contextmanager
def booted(out: Path, program: str, *modules: str) -> Iterator[subprocess.Popen[bytes]]:
    """A container that boots and runs `program`, a module of tests/support/, with others beside it.

    Parameters
    ----------
    out : Path
        A directory that both sides see; what systemd says at the boot is in `boot.log` there, what
        the program says in `said`.
    program : str
        Name of the module, which runs as a service, as root.
    *modules : str
        What it imports or starts, from tests/support/.
    """
    command = ["unshare", "--mount", "--propagation", "private", "--fork", "--kill-child"]
    command += [sys.executable, __file__, str(out), program, *modules]
    with (out / "boot.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _overlay(base: Path) -> Path:
    _run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", base)
    for name in ("up", "work", "root"):
        (base / name).mkdir()
    options = f"lowerdir=/,upperdir={base}/up,workdir={base}/work"
    _run("mount", "-t", "overlay", "overlay", "-o", options, base / "root")
    return base / "root"


def _show(source: str | Path, root: Path, name: str) -> None:
    (root / name).mkdir(parents=True)
    _run("mount", "--bind", "-o", "ro", source, root / name)


def _install(root: Path) -> None:
    """/opt/wheeld as `python -m venv` and `pip install .` make it, of the running interpreter and
    what this checkout was built to: a test has no network."""
    _show(sys.base_prefix, root, _INTERPRETER)
    (root / "etc/ld.so.conf.d").mkdir(exist_ok=True)
    (root / "etc/ld.so.conf.d/interpreter.conf").write_text(f"/{_INTERPRETER}/lib\n")
    _run("ldconfig", "-r", root)
    _show(site.getsitepackages()[0], root, _LIBRARIES)
    there, version = root / "opt/wheeld", f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = there / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (there / "bin").mkdir()
    (there / "bin/python").symlink_to(f"/{_INTERPRETER}/bin/{version}")
    (there / "pyvenv.cfg").write_text(f"home = /{_INTERPRETER}/bin\n")
    (packages / "libraries.pth").write_text(f"/{_LIBRARIES}\n")
    for package in _PACKAGES:
        shutil.copytree(CHECKOUT / package, packages / Path(package).name)
    script = there / "bin/wheeld"
    script.write_text("#!/opt/wheeld/bin/python\nfrom wheeld.__main__ import main\n\nmain()\n")
    script.chmod(0o755)
    (root / "usr/local/bin/wheeld").unlink(missing_ok=True)
    (root / "usr/local/bin/wheeld").symlink_to("/opt/wheeld/bin/wheeld")
    for file in plan("default", "/usr/local/bin/wheeld", for_user=False, root=root).files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.text)
    _run("chroot", root, "systemd-sysusers", "wheeld.conf")


def main(out: Path, program: str, *modules: str) -> None:
    base = out / "container"
    base.mkdir()
    root = _overlay(base)
    _install(root)
    (root / str(PROGRAMS)[1:]).mkdir(parents=True, exist_ok=True)
    for module in (program, *modules):
        shutil.copy(CHECKOUT / "tests" / "support" / f"{module}.py", root / str(PROGRAMS)[1:])
    _run("chmod", "-R", "a+rX", root / "opt/wheeld", root / str(PROGRAMS)[1:])
    rounds = os.environ.get("WHEELD_RESTARTS", "3")
    unit = _SCENE.format(program=PROGRAMS / f"{program}.py", out=OUT, rounds=rounds)
    (root / "etc/systemd/system/scene.service").write_text(unit)
    options = ["--quiet", "--private-network", "--register=no", "--keep-unit"]
    options += [f"--bind={out}:{OUT}", f"--directory={root}", "--boot"]
    os.execvp("systemd-nspawn", ["systemd-nspawn", *options, "systemd.unit=scene.service"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
