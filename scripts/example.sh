#!/bin/sh
# Sets servefront up and runs the main example: DeepSeek-R1 for a coding agent on 32 H200.
set -eu
INSTALL=.
. "$(dirname "$0")/venv.sh"
exec "$VENV/bin/servefront" optimize examples/deepseek-r1-h200.yaml --out runs/deepseek-r1-h200
