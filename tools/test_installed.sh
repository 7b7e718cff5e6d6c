#!/usr/bin/env bash
# test_installed.sh: the fast tests against the wheeld that is installed for `python`, which must be
# 'wheeld[daemon]' with pytest, pytest-timeout, pytest-xdist and hypothesis.
#
# Runs in a folder that has tests/, tools/, proofs/, examples/ and pyproject.toml, and no sources: what is
# imported is what was installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -d core ] || [ -d wheeld ]; then
    echo "test_installed.sh: there are sources in $PWD, and Python would import them" >&2
    exit 2
fi
# first the client with nothing but what it needs
python - <<'PYTHON'
import sys
import wheeld_client
loaded = {"typer", "rich", "pydantic", "psutil"} & set(sys.modules)
assert not loaded, loaded
print("installed:", wheeld_client.__file__)
import os, platform
from wheeld_core import _native
size, most = os.path.getsize(_native.__file__), 300_000 if platform.machine() == "x86_64" else 450_000
assert size <= most, f"the native module has {size} bytes, expected at most {most}: was WHEELD_STRIP=1 set?"
PYTHON
# -p: not `python -m pytest`, which looks into this folder first. Left out: what needs a compiler or
# packages of the extra `test`, or is of a checkout.
exec pytest -q -n 2 --dist loadgroup -p no:cacheprovider \
    tests/core tests/client tests/daemon/test_commands.py \
    --ignore tests/core/test_harness.py --ignore tests/core/test_sweep.py --ignore tests/core/test_wraps.py --ignore tests/core/test_fingerprint.py \
    --ignore tests/client/test_aio_expected.py --ignore tests/core/test_control_messages.py \
    --deselect tests/core/test_backing.py::test_dev_shm_that_fills \
    -k "not gevent and not uvloop and not trio and not layout" "$@"
