#!/usr/bin/env bash
# deb.sh WHEEL DIRECTORY: a Debian package of a wheel, in that directory.
#
# Debian's numpy is too old, so the package brings an environment of its own, /opt/wheeld, for
# Debian's Python. The command, its manual page, completions and units are where Debian has such.
# The package has no scripts: systemd reads units and accounts by itself at the next boot.
# PYTHON=... names another Python; needs the network, for the dependencies.
set -euo pipefail
wheel=$(realpath "$1") to=$(realpath "$2")
python=${PYTHON:-/usr/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root home=$work/root/opt/wheeld
export PIP_DISABLE_PIP_VERSION_CHECK=1

mkdir -p "$root/DEBIAN" "$root/usr/bin" "$root/usr/share" "$root/usr/lib/systemd/system" "$root/usr/lib/sysusers.d"
"$python" -m venv "$home"
"$home/bin/python3" -m pip install -q --no-compile --only-binary :all: "$wheel[daemon,metrics,jobs]"
"$home/bin/python3" -m pip uninstall -q -y pip setuptools
find "$home" -name __pycache__ -prune -exec rm -r {} +
find "$home/bin" -mindepth 1 -not -name 'python*' -not -name wheeld -delete
grep -rlIZ "$home" "$home" | xargs -0 -r sed -i "s#$home#/opt/wheeld#g"
# so that no run of root's leaves files there that dpkg does not know
"$home/bin/python3" -m compileall -q -s "$home" -p /opt/wheeld "$home/lib"

ln -s /opt/wheeld/bin/wheeld "$root/usr/bin/wheeld"
for part in "$home"/share/*; do
    [ "$(basename "$part")" = wheeld ] || mv "$part" "$root/usr/share"
done
gzip -9n "$root"/usr/share/man/man1/*
for unit in 'wheeld@.service' 'wheeld@.socket'; do
    sed 's#/usr/local/bin/wheeld#/usr/bin/wheeld#' "$home/share/wheeld/systemd/$unit" >"$root/usr/lib/systemd/system/$unit"
done
cp "$home/share/wheeld/systemd/wheeld.sysusers" "$root/usr/lib/sysusers.d/wheeld.conf"

version=$(basename "$wheel" | cut -d- -f2 | sed -E 's/\.?(dev|rc|a|b)([0-9])/~\1\2/')
needs=$("$python" -c 'import sys; print("python{}.{}".format(*sys.version_info))')
cat >"$root/DEBIAN/control" <<CONTROL
Package: wheeld
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: ${DEB_MAINTAINER:-wheeld <wheeld@localhost>}
Depends: $needs, libc6
Section: utils
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Description: timer daemon for the processes of one host
 Timers, jobs, rate limits and locks that all worker processes of one host
 share, in a timing wheel in shared memory.
CONTROL
dpkg-deb --root-owner-group -z1 --build "$root" "$to"
