#!/bin/sh
# Prints the first interpreter that can run kcoord (Python 3.11 to 3.14), the plain name first.
for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$name" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1; then
        echo "$name"
        exit 0
    fi
done
echo "no Python 3.11 to 3.14 found; name one with: make PYTHON=/path/to/python" >&2
echo python3
