#!/usr/bin/env bash
# free_threaded.sh PYTHON [pytest arguments]: the tests of the native module on a free-threaded Python.
#
# TSAN=1: PYTHON was configured --disable-gil --with-thread-sanitizer; build the module so, too, and
# run the tests that have many threads. A data race fails them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${1:?usage: free_threaded.sh PYTHON [pytest arguments]}
shift
"$python" -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' || {
    echo "free_threaded.sh: $python has a GIL; expected a free-threaded Python, such as python3.14t" >&2
    exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
wanted=(numpy psutil rich typer 'pytest<9' pytest-timeout pytest-xdist hypothesis trio 'setuptools>=77' 'setuptools-scm>=8')
# wheels only: a build of numpy under ThreadSanitizer takes an hour
TSAN_OPTIONS=report_bugs=0 "$python" -m venv "$work/venv"
TSAN_OPTIONS=report_bugs=0 "$work/venv/bin/python" -m pip install -qq --prefer-binary --only-binary :all: "${wanted[@]}"

# a tree of its own: the module of this checkout stays as it was built
tar cf - --exclude=.venv --exclude=.git --exclude=build --exclude='*.so' . | tar xf - -C "$work"
cd "$work"
export PYTHONPATH=.:core:client:pipeline
# those that need what has no wheel there
without=(-k "not gevent and not uvloop" --ignore tests/pool/test_memory_pool_async.py)
if [ -n "${TSAN:-}" ]; then
    WHEELD_SANITIZE=thread TSAN_OPTIONS=report_bugs=0 venv/bin/python setup.py -q build_ext --inplace
    export TSAN_OPTIONS="log_path=$work/race exitcode=66"
    venv/bin/python -m pytest -q -p no:xdist -p no:cacheprovider "$@" \
        tests/client/test_threads.py tests/purgatory/test_purgatory_threads.py
    if compgen -G "$work/race*" >/dev/null; then
        cat "$work"/race* >&2
        exit 1
    fi
else
    venv/bin/python setup.py -q build_ext --inplace
    venv/bin/python -m pytest -q -n 2 --dist loadgroup -p no:cacheprovider "${without[@]}" "$@" \
        tests/client tests/purgatory tests/pool
fi
