"""The one extension, `wheeld_core._native`; all else is in pyproject.toml.

Environment
-----------
WHEELD_WERROR=1
    Compiler warnings are errors (`make check` sets it).
WHEELD_SANITIZE=address,undefined or thread
    Build with these sanitizers.
WHEELD_PAGES=https://HOST/PATH
    Where the files of this version can be read: links of the README lead there on a package index,
    which knows no relative ones. Without it they stay relative, and the package names no address.
WHEELD_STRIP=1
    Leave debug information, symbols and unwind tables out, as in wheels (`tool.cibuildwheel` sets
    it): without symbols a profiler has no use for the tables.
"""

import importlib.util
import os
import re
import subprocess
import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build

compile_args = [
    *("-std=c11", "-O3", "-g", "-fvisibility=hidden"),
    # All is one translation unit, and gcc's bound on what inlining adds to it (40 %) would leave
    # calls in loops over batches: 10 % slower.
    *("--param", "inline-unit-growth=60"),
    *("-Wall", "-Wextra", "-Wno-missing-field-initializers"),
]
link_args = []

if os.environ.get("WHEELD_WERROR") == "1":
    compile_args.append("-Werror")
if os.environ.get("WHEELD_STRIP") == "1":
    compile_args += ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
    link_args.append("-Wl,--strip-all")
if sanitizers := os.environ.get("WHEELD_SANITIZE"):
    compile_args += ["-O1", f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer"]
    compile_args.append("-fno-sanitize-recover=all")
    link_args.append(f"-fsanitize={sanitizers}")

native = Extension(
    "wheeld_core._native",
    sources=["core/wheeld_core/native/module.c"],  # includes the other parts
    include_dirs=["core/include"],
    depends=[
        *glob("core/include/wheeld/*/*.h"),
        *glob("core/wheeld_core/native/**/*.[ch]", recursive=True),
    ],
    libraries=["rt"],  # shm_open, before glibc 2.34
    extra_compile_args=compile_args,
    extra_link_args=link_args,
)

readme = Path("README.md").read_text()
urls = {}
if pages := os.environ.get("WHEELD_PAGES", "").rstrip("/"):
    readme = re.sub(r"\]\((?!https?:|#)", f"]({pages}/", readme)
    urls = {
        "Documentation": f"{pages}/docs/index.md",
        "Changes": f"{pages}/CHANGELOG.md",
        "Source": pages,
    }


class Build(build):
    """Builds the package, then its manual page and completions from the commands as built."""

    def run(self):
        super().run()
        editable = self.get_finalized_command("build_py").editable_mode
        if editable or not all(map(importlib.util.find_spec, ("typer", "psutil"))):
            return  # without build isolation, who builds may lack what the commands need
        share = Path(self.build_base, "share")
        paths = [os.path.abspath(self.build_lib), os.environ.get("PYTHONPATH", "")]
        subprocess.run(
            [sys.executable, "tools/manual.py", str(share), self.distribution.get_version()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            check=True,
        )
        self.distribution.data_files = [
            *(self.distribution.data_files or ()),
            *(
                (f"share/{made.parent.relative_to(share)}", [str(made)])
                for made in share.rglob("*")
                if made.is_file()
            ),
        ]


setup(
    cmdclass={"build": Build},
    ext_modules=[native],
    long_description=readme,
    long_description_content_type="text/markdown",
    project_urls=urls,
)
