"""The Debian package: built, installed below another root, its daemon started there, purged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daemons import Daemon
from programs import ROOT

PYTHON = "/usr/bin/python3"
NUMBER = "{}.{}".format(*sys.version_info)


def run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if "No matching distribution" in done.stderr or "Failed to establish" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return done.stdout


def debians_python() -> bool:
    """Is there one that the wheel of this Python is for, and that can make environments?"""
    if not (shutil.which("dpkg-deb") and os.access(PYTHON, os.X_OK)):
        return False
    ask = f"import sys, ensurepip; print('{{}}.{{}}'.format(*sys.version_info) == '{NUMBER}')"
    done = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True)
    return done.stdout == "True\n"


@pytest.mark.timeout(900)
@pytest.mark.skipif(not debians_python(), reason=f"no dpkg-deb, or Debian has no Python {NUMBER}")
def test_built_installed_started_and_purged(
    wheel_file: Path, tmp_path: Path, daemon_name: str, runtime_dir: Path
) -> None:
    run(ROOT / "tools/deb.sh", wheel_file, tmp_path)
    (package,) = tmp_path.glob("*.deb")
    assert f"Depends: python{NUMBER}, libc6" in run("dpkg-deb", "--info", package)
    root, state = tmp_path / "root", tmp_path / "root/var/lib/dpkg"
    for folder in ("info", "updates", "triggers"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()
    dpkg = ("dpkg", f"--root={root}", "--force-not-root", "--force-depends", "--force-bad-path")
    run(*dpkg, "--install", package)
    program = (root / "opt/wheeld/bin/wheeld").read_text()
    assert program.splitlines()[0] == "#!/opt/wheeld/bin/python3"
    assert os.readlink(root / "usr/bin/wheeld") == "/opt/wheeld/bin/wheeld"
    unit = (root / "usr/lib/systemd/system/wheeld@.service").read_text()
    assert "ExecStart=/usr/bin/wheeld start --name %i" in unit
    files = run("dpkg-query", f"--admindir={state}", "--listfiles", "wheeld").split()
    assert {"/usr/share/man/man1/wheeld.1.gz", "/usr/lib/sysusers.d/wheeld.conf"} <= {*files}
    assert not [name for name in files if re.search(r"/bin/pip|/bin/activate", name)]
    left = subprocess.run(["grep", "-rlI", str(tmp_path), root / "opt", root / "usr"], check=False)
    assert left.returncode == 1, "no file knows where it was built"
    with Daemon(runtime_dir, daemon_name, metrics="127.0.0.1:0", web="127.0.0.1:0") as daemon:
        python = str(root / "opt/wheeld/bin/python3")
        daemon.program = (python, "-I", "-m", "wheeld")
        daemon.start()
        found = json.loads(run(python, "-I", "-m", "wheeld", "status", "--json", *daemon.where))
        assert found["clock_ok"]
        daemon.stop()
    run(*dpkg, "--purge", "wheeld")
    assert not (root / "opt/wheeld").exists()
