# SPDX-License-Identifier: Apache-2.0
# What ./run and ./check share: which packages are needed and why, installing them, saying what goes wrong.
# Sourced by bash. Everything is said on stderr: stdout belongs to the program that ./run starts.

say()  { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
stop() { local code=$1; shift; say "$@"; exit "$code"; }

missing_packages=()
missing_reasons=()

# need PACKAGE "why" PROBE…: notes the Debian package when the probe fails.
need() {
    local package=$1 why=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    missing_packages+=("$package")
    missing_reasons+=("$why")
}

# No pipe: with pipefail a compiler that ends before it has read everything would count as a missing header.
has_c_header()   { cc -E -x c - <<<"#include <$1>"; }
has_cxx_header() { c++ -std=c++17 -E -x c++ - <<<"#include <$1>"; }
has_torch()      { /usr/bin/python3 -c 'import importlib.util as u; exit(u.find_spec("torch") is None)'; }
has_jsonschema() { /usr/bin/python3 -c 'import importlib.util as u; exit(u.find_spec("jsonschema") is None)'; }
has_libclang()   { /usr/bin/python3 -c 'import importlib.util as u; exit(u.find_spec("clang") is None)'; }
has_pytest()     { /usr/bin/python3 -c 'import importlib.util as u; exit(u.find_spec("pytest") is None)'; }

# The embedded default: the verifier on the simulator with SQLite.
need_for_run() {
    need gcc                 "a C compiler" command -v cc
    need g++                 "a C++ compiler, for the shim of the TOML parser" command -v c++
    need cmake               "the build" command -v cmake
    need ninja-build         "the build" command -v ninja
    need libsqlite3-dev      "the trace store" has_c_header sqlite3.h
    need libtomlplusplus-dev "reading scenarios" has_cxx_header toml++/toml.h
    need libxxhash-dev       "digests of tensors and traces" has_c_header xxhash.h
    need libboost-context-dev "fast switches between simulated ranks" has_cxx_header boost/context/fiber_fcontext.hpp
}

# The tests, and the backends that they can exercise without special hardware.
need_for_check() {
    need libcmocka-dev  "the test harness" has_c_header cmocka.h
    need pkg-config     "the test of the installed library" command -v pkg-config
    need patch          "planting mistakes that the verifier must name" command -v patch
    need clang          "the second compiler that must agree" command -v clang
    need libgloo-dev    "the Gloo backend" has_cxx_header gloo/context.h
    need libopenmpi-dev "the MPI backend" command -v mpicc
    need openmpi-bin    "starting MPI ranks" command -v mpirun
    # Other releases lack this version; there the test of the layout is skipped, saying so.
    case $(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME-}") in
        bookworm | jammy | noble) need clang-format-14 "the layout of the sources" command -v clang-format-14 ;;
    esac
}

# Installs what need noted, or explains and stops with 3.
install_missing() {
    [ ${#missing_packages[@]} -eq 0 ] && return
    say "missing on this machine:"
    local i
    for i in "${!missing_packages[@]}"; do
        printf '    %-21s %s\n' "${missing_packages[$i]}" "${missing_reasons[$i]}" >&2
    done
    command -v apt-get >/dev/null ||
        stop 3 "this is not a Debian or Ubuntu system; please install what these packages contain, then try again"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            stop 3 "as root: apt-get install ${missing_packages[*]}"
        as_root=(sudo)
    fi
    say "installing them with ${as_root[*]:+${as_root[*]} }apt-get"
    apt_install() {
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends "${missing_packages[@]}" >&2
    }
    # The lists of a fresh container are empty, those of an old one name files that are gone.
    apt-cache show "${missing_packages[@]}" >/dev/null 2>&1 && apt_install && return
    "${as_root[@]}" apt-get update -q >&2 && apt_install ||
        stop 3 "apt-get could not install them; the lines above say why"
}

# What CMake, or the rules that it writes, cannot have in the name of a folder.
require_path() {
    case $1 in
        *[\"\#\\\;:]* | *$'\n'*) stop 3 "CMake cannot build in $1: a folder's name must not contain any of \" # \\ ; : or a line break" ;;
    esac
}

# CMake before 3.21 cannot read the build; say so instead of failing in the middle of it.
require_cmake() {
    local version
    version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
    [ "$(printf '%s\n' 3.21 "$version" | sort -V | head -n 1)" = 3.21 ] ||
        stop 3 "CMake $version is too old, 3.21 is the first that will do"
}

# As many jobs as there are processors that this process may use.
job_count() { nproc 2>/dev/null || echo 2; }

# progress: reads what ninja says into a pipe; keeps one line per tenth of the build, and whatever is no step.
# A build of a few steps is over before anybody asks.
progress() {
    local line tenth said=0 total=0
    while IFS= read -r line; do
        if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
            [ "${BASH_REMATCH[2]}" = "$total" ] || said=0
            total=${BASH_REMATCH[2]}
            tenth=$((BASH_REMATCH[1] * 10 / total))
            [ "$total" -lt 20 ] || [ "$tenth" -le "$said" ] || say "built $((tenth * 10))% of $total steps"
            said=$tenth
        elif [ "$line" != "ninja: no work to do." ]; then
            printf '%s\n' "$line" >&2
        fi
    done
}
