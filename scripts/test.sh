#!/bin/sh
# Sets servefront up with its development tools and runs the tests.
set -eu
INSTALL='.[dev]'
. "$(dirname "$0")/venv.sh"
exec "$VENV/bin/python" -m pytest -q "$@"
