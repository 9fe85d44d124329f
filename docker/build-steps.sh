#!/bin/sh
# The steps of the image's build, as a script so that they can also be run without a container engine:
#   build-steps.sh dependencies PREFIX [LOCK]    a virtual environment with kcoord's locked dependencies
#   build-steps.sh tools TOOLS                   one with the locked tools that build the wheel
#   build-steps.sh compile SOURCE TOOLS          the hot modules as native code, in SOURCE/build
#   build-steps.sh package SOURCE TOOLS PREFIX STAGE
#                                                the package for PREFIX, below the folder STAGE
#   build-steps.sh trim PREFIX                   removes pip from the Python at PREFIX and compiles its bytecode
#   build-steps.sh check PREFIX                  fails unless PREFIX is what the image promises
# Every step reads only what it names, so that an engine repeats it only when that has changed. No environment contains
# pip: the one of BUILD_PYTHON (default: python3) installs. `compile` needs a C compiler and Python's headers.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${BUILD_PYTHON:-python3}
pip="$python -m pip --disable-pip-version-check --quiet"
export PIP_ROOT_USER_ACTION=ignore

environment() { # PREFIX LOCK: exactly the locked packages, as wheels
    "$python" -m venv --without-pip "$1"
    $pip --python "$1/bin/python" install --no-deps --no-compile --only-binary :all: --require-hashes -r "$here/$2"
}

bytecode() { # PYTHON FOLDER: for every module without native code, without a look at its source when it is imported
    "$1" -m compileall -q -j 0 -x '/(idlelib|lib2to3|test|tests|tkinter|turtledemo)/' \
        --invalidation-mode unchecked-hash "$2"
    find "$2" -name '*.so' | while read -r library; do
        name=${library##*/}
        rm -f "${library%/*}/__pycache__/${name%%.*}".*.pyc
    done
}

without_installers() { # FOLDER...: fail if pip, setuptools or wheel is installed there
    found=$(find "$@" \( -name 'pip-*' -o -name 'setuptools-*' -o -name 'wheel-*' \))
    [ -z "$found" ] || { echo "the image must not contain: $found" >&2; exit 1; }
}

step=$1
shift
case $step in
dependencies)
    environment "$1" "${2:-requirements.txt}"
    bytecode "$1/bin/python" "$1/lib"
    ;;
tools)
    environment "$1" requirements-build.txt
    ;;
compile)
    # `package` builds the wheel from this folder, and finds it up to date.
    "$2/bin/python" "$1/tools/compile.py" --out "$1/build/wheel"
    ;;
package)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    KCOORD_COMPILE=1 $pip --python "$2/bin/python" wheel --no-build-isolation --no-deps --wheel-dir "$scratch" "$1"
    $pip --python "$3/bin/python" install --no-deps --no-compile --no-index --no-warn-script-location \
        --find-links "$scratch" --root "$4" kcoord
    bytecode "$3/bin/python" "$4$3/lib"
    ;;
trim)
    for folder in "$1"/lib/python3.*; do
        rm -rf "$folder/ensurepip"
        for package in pip setuptools wheel pkg_resources _distutils_hack distutils-precedence.pth; do
            rm -rf "$folder/site-packages/$package" "$folder/site-packages/$package"-*
        done
        bytecode "$python" "$folder"
    done
    rm -f "$1"/bin/pip* "$1"/bin/wheel
    without_installers "$1"/lib/python3.*
    ;;
check)
    without_installers "$1"
    cd /
    # The image promises native code: refuse one that would run interpreted.
    "$1/bin/python" -P -c '
import sys, kcoord.protocol.offset_commit as m
sys.exit(0 if m.__file__.endswith((".so", ".pyd")) else "the installed package is not compiled")'
    "$1/bin/kcoord" version
    ;;
*)
    echo "unknown step: $step" >&2
    exit 2
    ;;
esac
