# Sourced by the other scripts: makes the virtual environment where there is none and installs into it.
# INSTALL is what pip installs; VENV names its folder (default: .venv in the checkout), PYTHON the interpreter (default: python3).
cd "$(dirname "$0")/.." || exit 1
VENV="${VENV:-.venv}"
"${PYTHON:-python3}" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || {
    echo "servefront needs Python 3.11 to 3.13; set PYTHON to one" >&2
    exit 2
}
[ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e "$INSTALL"
