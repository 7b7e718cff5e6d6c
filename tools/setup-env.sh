#!/usr/bin/env bash
# setup-env.sh run|fast|test|dev: make .venv ready for running, the quick tests, all tests, or developing.
#
# Does nothing when .venv is newer than all that it was made from. Otherwise finds a Python, says in
# one line what is missing on this machine, makes .venv and installs the checkout into it (editable).
# PYTHON=... names the Python to use. LOCKED=1 takes the versions of tools/locked.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

purpose=${1:?usage: setup-env.sh run|fast|test|dev}
case $purpose in
    run) extras="[plots,report]" groups="" ;; # the demo draws a picture and ends with a report, without Java
    fast) extras="[parquet,jobs]" groups="test-fast" ;;
    test) extras="[plots,connect,parquet,jobs]" groups="test" ;;
    dev) extras="[plots,connect,kafka,parquet,jobs]" groups="test check docs bench" ;;
    *) echo "setup-env.sh: got '$purpose', expected run, fast, test or dev" >&2; exit 2 ;;
esac
made_from=(pyproject.toml setup.py tools/setup-env.sh core/include core/wheeld_core/native)
identity='import sys; print(sys.base_prefix, *sys.version_info[:2])'

fail() { echo "wheeld: $*" >&2; exit 1; }

# Made for this folder (a copied .venv runs the code it was copied from) and by the Python asked for?
venv_is_ours() {
    [ "$(cat .venv/.made-for 2>/dev/null)" = "$PWD" ] || return 1
    .venv/bin/python -c '' 2>/dev/null || return 1
    [ -z "${PYTHON:-}" ] || [ "$($PYTHON -c "$identity")" = "$(.venv/bin/python -c "$identity")" ]
}

up_to_date() {
    local stamp=.venv/.ready-$purpose
    [ -f "$stamp" ] && [ -z "$(find "${made_from[@]}" -type f -newer "$stamp" -print -quit)" ]
}

# Debian packages that `$1` lacks to build and run wheeld; empty if none.
lacks() {
    "$1" - <<'PYTHON_CODE'
import importlib.util, os, sys, sysconfig
version = "{}.{}".format(*sys.version_info)
# ensurepip is what Debian leaves out; pip in a new .venv comes from there
if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
    print(f"the module venv (python{version}-venv)")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(f"Python.h (python{version}-dev)")
PYTHON_CODE
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# The first recent Python that lacks nothing; else the first recent one.
find_python() {
    local candidate first=""
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        is_recent "$candidate" || continue
        first=${first:-$candidate}
        [ -n "$(lacks "$candidate")" ] || { echo "$candidate"; return; }
    done
    echo "$first"
}

make_venv() {
    local python missing
    python=$(find_python)
    if [ -z "$python" ]; then
        fail "needs Python 3.11 or newer; ${PYTHON:-python3} is" \
            "$(${PYTHON:-python3} -V 2>/dev/null || echo missing)." \
            "Install one, or name one: make PYTHON=/path/to/python3 ..."
    fi
    missing=$(lacks "$python")
    if ! command -v "${CC:-cc}" >/dev/null && ! command -v gcc >/dev/null; then
        missing+="${missing:+$'\n'}a C compiler (gcc)"
    fi
    if [ -n "$missing" ]; then
        fail "$python lacks ${missing//$'\n'/ and }." \
            "The Debian packages are in brackets: sudo apt-get install" \
            "$(sed -E 's/.*\((.*)\)/\1/' <<<"$missing" | paste -sd' ')"
    fi
    echo "wheeld: making .venv with $("$python" -V) ($(command -v "$python"))"
    "$python" -m venv --clear .venv
    echo "$PWD" >.venv/.made-for
}

venv_is_ours || make_venv
up_to_date && exit 0

echo "wheeld: installing wheeld$extras${groups:+ and the groups $groups} into .venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
started=$(mktemp .venv/.started-XXXXXX) # a file saved during the build is newer than this
[ -z "${LOCKED:-}" ] || export PIP_CONSTRAINT=tools/locked.txt
# pip knows groups from 25.1 on
.venv/bin/python -m pip install -qq 'pip>=25.1' 'setuptools>=77' 'setuptools-scm>=8'
# shellcheck disable=SC2046,SC2086 # words
.venv/bin/python -m pip install -qq --no-build-isolation --editable ".$extras" ${groups:+$(printf -- '--group %s ' $groups)} ||
    fail "the installation into .venv failed; pip's message is above"
case $purpose in # each purpose includes the ones before it
    dev) ready="run fast test dev" ;;
    test) ready="run fast test" ;;
    fast) ready="fast" ;;
    run) ready="run" ;;
esac
for name in $ready; do touch -r "$started" ".venv/.ready-$name"; done
rm -f "$started"
