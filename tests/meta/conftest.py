"""Shared by several tests of the folder."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from programs import ROOT
from wheeld_core import _native


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "wheel_file" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("wheel"))


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout: built once, in one process of the run."""
    place = tmp_path_factory.mktemp("wheel")
    # Half a minute of gcc: where setuptools finds one as new as its sources, it does not compile.
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    built = ROOT / f"build/lib.{platform}/wheeld_core"
    built.mkdir(parents=True, exist_ok=True)
    shutil.copy2(_native.__file__, built)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(place), str(ROOT)], check=True)
    (wheel,) = place.glob("*.whl")
    return wheel
