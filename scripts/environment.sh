# Sourced by the scripts beside it: keeps .venv up to date; sets root, venv and python.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python

# Prints the first Python that is new enough and can make a virtual environment.
find_python() {
    local name candidate version too_old="" no_venv=""
    for name in python3.11 python3.12 python3.13 python3.14 python3 python; do
        # Every one on PATH, and asked rather than parsed: a version manager's shim may stand
        # before the system's Python and fail when run.
        while read -r candidate; do
            version=$("$candidate" -c 'import sys
print("%d.%d %d" % (*sys.version_info[:2], sys.version_info >= (3, 11)))' 2>/dev/null) || continue
            if [ "${version#* }" != 1 ]; then
                too_old=${version% *}
            elif ! "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
                no_venv=${version% *}
            else
                echo "$candidate"
                return
            fi
        done < <(type -aP "$name")
    done
    if [ -n "$no_venv" ]; then
        echo "Python $no_venv cannot make virtual environments: its venv module is missing." \
            "On Debian and Ubuntu: apt-get install python$no_venv-venv" >&2
    else
        echo "Python 3.11 or newer is needed, found ${too_old:-none}." \
            "On Debian and Ubuntu: apt-get install python3 python3-venv" >&2
    fi
    return 1
}

# Prints what an installation rests on: the requirements, the folder that the editable install
# and the console scripts point into, and the interpreter. Fails if .venv has no working Python.
fingerprint() {
    "$python" - "$root" 2>/dev/null <<'PY'
import hashlib, pathlib, sys

root = pathlib.Path(sys.argv[1])
parts = [(root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
print(hashlib.sha256(b"\0".join([*parts, bytes(root), sys.version.encode()])).hexdigest())
PY
}

# is_installed EXTRA: a finished installation holds EXTRA ("" for the bare package).
is_installed() {
    local extra current
    [ ! -e "$venv/unfinished" ] && current=$(fingerprint) || return 1
    for extra in "$1" test; do # test holds all that the bare package needs
        [ "$(cat "$venv/installed-${extra:-package}" 2>/dev/null)" = "$current" ] && return 0
    done
    return 1
}

install() {
    local extra=$1 base status=0
    if [ -e "$venv/unfinished" ] || ! fingerprint >/dev/null \
        || ! "$python" -m pip --version >/dev/null 2>&1; then
        base=$(find_python)
        echo "Making $venv with $base"
        rm -rf -- "$venv"
        mkdir -- "$venv"
        touch -- "$venv/unfinished"
        "$base" -m venv "$venv"
    fi
    echo "Installing what is missing; the first time this downloads several hundred megabytes"
    # pip undoes what it fails at, but not what it is killed at: then .venv is made anew.
    touch -- "$venv/unfinished"
    (cd -- "$root" && "$python" -m pip install --disable-pip-version-check \
        -c constraints.txt -e ".${extra:+[$extra]}") || status=$?
    if [ "$status" -lt 128 ]; then
        rm -f -- "$venv/unfinished"
    fi
    if [ "$status" -ne 0 ]; then
        echo "Set-up failed: pip's message is above. Run the same command again to go on." >&2
        return "$status"
    fi
    fingerprint >"$venv/installed.new"
    mv -- "$venv/installed.new" "$venv/installed-${extra:-package}"
}

# prepare_environment EXTRA: on return .venv holds this project with EXTRA ("" for none).
prepare_environment() {
    is_installed "$1" && return
    # Two set-ups at once would undo each other. The lock goes with the process that holds it.
    exec 9<"$root/scripts/environment.sh"
    if command -v flock >/dev/null && ! flock -n 9; then
        echo "Waiting for another set-up of $venv"
        flock 9
    fi
    is_installed "$1" || install "$1"
    exec 9<&-
}
