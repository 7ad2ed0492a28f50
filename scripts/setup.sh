# Sourced by quickstart and test: install what is missing, and say which Python environment to use.
# shellcheck shell=bash
# Sets: PROJECT, VENV (its directory). Needs root or sudo for system packages only, and only when
# one is missing.
set -euo pipefail
PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

# The newest Python of the system that is at least 3.11.
find_python() {
    local candidate
    for candidate in /usr/bin/python3 /usr/bin/python3.1{4,3,2,1} /usr/local/bin/python3 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    say "cannot find Python 3.11 or newer: install it (Debian 12, Ubuntu 24.04 and later have it)"
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# install_packages PACKAGE…: those of them that dpkg does not know as installed.
install_packages() {
    local package missing=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    if ! command -v apt-get >/dev/null 2>&1; then
        say "cannot install ${missing[*]}: no apt-get here, use this system's package manager"
        return 1
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        say "cannot install ${missing[*]}: neither root nor sudo; ask an administrator for them"
        return 1
    fi
    say "installing system packages: ${missing[*]}"
    as_root apt-get update -qq >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >&2
}

# Build tools for python-prctl, the libseccomp that pyseccomp loads, and venv.
install_base_packages() {
    local extra=()
    command -v python3 >/dev/null 2>&1 || extra=(python3)
    install_packages gcc libc6-dev libcap-dev libseccomp2 python3-dev python3-venv "${extra[@]}"
}

# make_venv EXTRA…: an environment with the dependencies of these extras, kept between calls.
# Its name holds a digest of what it was made from, so a change makes a new one; with VENV_OWNER
# set it is that checkout's alone.
make_venv() {
    local python base digest packages
    python=$(find_python)
    mapfile -t packages < <("$python" - "$PROJECT/pyproject.toml" "$@" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)
extras = project["project"]["optional-dependencies"]
for name in sys.argv[2:]:
    print(*extras[name], sep="\n")
print(*project["build-system"]["requires"], sep="\n")
PY
    )
    if [ "$(id -u)" = 0 ]; then base=/var/cache/sandboxd; else
        base=${XDG_CACHE_HOME:-$HOME/.cache}/sandboxd
    fi
    digest=$(printf '%s\n' "$("$python" -V)" "${packages[@]}" "${VENV_OWNER:-}" |
        sha256sum | cut -c1-12)
    VENV=$base/venv-$digest
    [ -e "$VENV/complete" ] && return
    say "making a Python environment in $VENV"
    (
        umask 022
        rm -rf "$VENV"
        mkdir -p "$base"
        "$python" -m venv "$VENV"
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
            --use-pep517 "${packages[@]}"
        touch "$VENV/complete"
    ) >&2
}
