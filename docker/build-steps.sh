#!/bin/sh
# The steps of the image's build stage, as a script so that they can also be run without a container engine:
#   build-steps.sh SOURCE PREFIX [PYTHON]
# builds a wheel of SOURCE with native hot modules and installs it, with its dependencies, into a virtual
# environment at PREFIX. Needs a C compiler and Python's headers. SOURCE is only read.
set -eu

source=$(cd "$1" && pwd)
prefix=$2
python=${3:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cp -R "$source/." "$scratch/source"
"$python" -m venv "$prefix"
"$prefix/bin/python" -m pip --disable-pip-version-check install --quiet --upgrade 'pip>=25.1'
KCOORD_COMPILE=1 "$prefix/bin/python" -m pip --disable-pip-version-check wheel --quiet --no-deps \
    --wheel-dir "$scratch/wheels" "$scratch/source"
"$prefix/bin/python" -m pip --disable-pip-version-check install --quiet "$scratch"/wheels/kcoord-*.whl

# The image promises native code: refuse to build one that would run interpreted.
cd "$scratch"
"$prefix/bin/python" -P -c '
import sys, kcoord.protocol.offset_commit as m
sys.exit(0 if m.__file__.endswith((".so", ".pyd")) else "the installed package is not compiled")'
"$prefix/bin/kcoord" --help >/dev/null
echo "installed at $prefix"
