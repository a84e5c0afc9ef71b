# Sourced by scripts/tune and scripts/test: makes .venv when it is missing or older than the pins, else does nothing.
# Expects $root, the project's folder; takes what to install: "." or ".[test]".

# A Python that the project accepts; TUNE_PYTHON names another one.
find_python() {
    local candidate
    for candidate in ${TUNE_PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "No Python 3.11 to 3.13 was found (tried ${TUNE_PYTHON:-python3 python3.13 python3.12 python3.11});" \
        "install one, or name it with TUNE_PYTHON." >&2
    exit 2
}

# What .venv was made from; equal text means that it is up to date.
environment_stamp() {
    echo "$1"
    cat "$root/pyproject.toml" "$root/constraints.txt"
}

ensure_environment() {
    local what=$1 venv="$root/.venv"
    # An environment for the tests has all that tune needs.
    for made in "$what" ".[test]"; do
        if [ -f "$venv/made-from" ] && environment_stamp "$made" | cmp -s - "$venv/made-from"; then
            return
        fi
    done
    local python
    python=$(find_python)
    # Two of these at once would tear the environment apart; the second one waits and finds it made.
    exec 9>"$root/.venv.lock"
    if command -v flock >/dev/null; then
        flock 9
        if [ -f "$venv/made-from" ] && environment_stamp "$what" | cmp -s - "$venv/made-from"; then
            exec 9>&-
            return
        fi
    fi
    echo "Making the environment in .venv with $("$python" --version) (once; about 2 GB, one to five minutes) ..." >&2
    if ! "$venv/bin/python" -c '' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
    fi
    rm -f "$venv/made-from"
    if ! "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
        --constraint "$root/constraints.txt" --editable "$root${what#.}" >&2; then
        echo "The packages could not be installed: the lines above say why. Run the same command again to retry." >&2
        exit 2
    fi
    environment_stamp "$what" >"$venv/made-from"
    exec 9>&-
    echo "The environment is ready." >&2
}
