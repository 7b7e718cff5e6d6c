#!/usr/bin/env bash
# wheels.sh [pytest arguments]: what the workflow does for each Python, here for one.
#
# Builds the sdist, a wheel from that, repairs it (auditwheel), installs it into a fresh environment
# without a compiler, and runs the fast tests against what was installed. The results are in dist/.
# PYTHON=... names the Python; needs the network, for the dependencies.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
tools=$PWD/.venv/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

rm -rf dist
mkdir dist
"$tools/python" -m build --sdist --outdir dist . >"$work/sdist.log" || { cat "$work/sdist.log"; exit 1; }
if [ -e .git ]; then # who builds from the sdist alone has all that a checkout has, but for its own settings
    missing=$(comm -23 <(git ls-files | grep -v '^\.[^/]*$\|^\.ci/\|\.gitignore$' | sort) \
        <(tar tzf dist/wheeld-*.tar.gz | sed 's,^[^/]*/,,' | sort))
    [ -z "$missing" ] || { echo "wheels.sh: MANIFEST.in leaves out:" $missing >&2; exit 1; }
fi
"$python" -m venv "$work/build"
tar xzf dist/wheeld-*.tar.gz -C "$work"
WHEELD_STRIP=1 "$work/build/bin/python" -m pip wheel -q --no-deps --wheel-dir "$work/raw" "$work"/wheeld-*/
PATH=$tools:$PATH "$tools/auditwheel" repair --wheel-dir dist "$work"/raw/*.whl | tail -1
ls -l dist

# an environment of its own, and no compiler
"$python" -m venv "$work/env"
mkdir "$work/bin"
for command in bash env python3 cat ls mkdir rm dirname uname sleep kill ps stat sed grep; do
    found=$(command -v "$command") && ln -s "$found" "$work/bin/"
done
export PATH=$work/env/bin:$work/bin
if command -v cc || command -v gcc; then
    echo "wheels.sh: there is a compiler on the path" >&2
    exit 1
fi
wheel=$(echo dist/*.whl)
pip install -q --only-binary :all: "$wheel"
echo "the client alone: $(pip freeze | tr '\n' ' ')"
pip install -q --only-binary :all: "$wheel[daemon]" 'pytest>=8.2,<9' pytest-timeout pytest-xdist hypothesis
ls "$work"/env/share/man/man1/wheeld.1 "$work"/env/share/wheeld/{systemd/wheeld@.service,prometheus/wheeld-alerts.yml,grafana/wheeld.json}
mkdir "$work/there"
for part in tests tools proofs examples pyproject.toml; do
    "$python" -c 'import shutil, sys; (shutil.copytree if sys.argv[3] else shutil.copy)(*sys.argv[1:3])' \
        "$part" "$work/there/$part" "$([ -d "$part" ] && echo tree || true)"
done
bash "$work/there/tools/test_installed.sh" "$@"
