#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ./run and ./check on machines that lack things: scripts_test.sh ROOT
#
# The machine is a PATH of links to ordinary tools and of stand-ins for the rest, which note how they were called.
# Nothing is installed, configured or built for real.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

expect() { # expect "claim" COMMAND…
    local claim=$1
    shift
    if "$@"; then printf 'ok      %s\n' "$claim"; else
        printf 'FAILED  %s\n' "$claim"
        sed 's/^/        /' "$work/said"
        failures=$((failures + 1))
    fi
}
said()     { grep -q -e "$1" "$work/said"; }
never()    { ! grep -q -e "$1" "$work/calls"; }
called()   { grep -q -e "$1" "$work/calls"; }
ended()    { [ "$code" -eq "$1" ]; }
before()   { [ "$(grep -n -m 1 -e "$1" "$work/said" | cut -d: -f1)" -lt "$(grep -n -m 1 -e "$2" "$work/said" | cut -d: -f1)" ]; }

stand_in() { # stand_in NAME 'body'
    rm -f "$work/bin/$1"
    printf '#!/usr/bin/env bash\necho "%s $*" >>"%s/calls"\n%s\n' "$1" "$work" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

# A fresh checkout and a machine without compilers; user 0 is root.
machine() {
    rm -rf "$work/bin" "$work/tree"
    mkdir -p "$work/bin" "$work/tree/cmake"
    cp "$root/run" "$root/check" "$work/tree"
    cp "$root/cmake/packages.sh" "$work/tree/cmake"
    : >"$work/calls"
    local tool
    for tool in bash env dirname basename cat sed head sort nproc grep mkdir chmod cp rm cut; do
        ln -s "$(type -P "$tool")" "$work/bin/$tool"
    done
    stand_in id "echo $1"
}

start() { # start ./run ARGS…
    code=0
    (cd "$work/tree" && PATH=$work/bin env -u CI "$@") >"$work/said" 2>&1 || code=$?
}

# cmake that "builds" a verifier which says its arguments.
stand_in_for_cmake='case "$1" in --version) echo "cmake version 3.25.1";; --build) [ ! -d "$2" ] || { mkdir -p "$2/bin"; '
stand_in_for_cmake+='printf "#!/usr/bin/env bash\necho verifier got \$*\n" >"$2/bin/cddp-verify"; chmod +x "$2/bin/cddp-verify"; };; '
stand_in_for_cmake+='-S) mkdir -p "$4"; : >"$4/build.ninja";; esac'
install_all='case "$*" in *install*) for t in cc c++ ninja; do printf "#!/usr/bin/env bash\n" >"'$work'/bin/$t"; chmod +x "'$work'/bin/$t"; done; '
install_all+='cp "'$work'/cmake" "'$work'/bin/cmake";; esac'
stand_in_file() { mkdir -p "$work/bin"; stand_in cmake "$stand_in_for_cmake"; mv "$work/bin/cmake" "$work/cmake"; }

machine 0
start ./run scenario.toml
expect "without apt-get ./run ends with 3" ended 3
expect "… names the compiler package" said '  gcc  *a C compiler'
expect "… names the store's package and says why" said 'libsqlite3-dev  *the trace store'
expect "… and asks for nothing that only tests need" bash -c "! grep -q cmocka '$work/said'"

machine 0
stand_in_file
stand_in apt-get "$install_all"
stand_in apt-cache ""
start ./run scenario.toml --quiet
expect "as root ./run installs, builds and starts the verifier" ended 0
expect "… with its arguments" said 'verifier got scenario.toml --quiet'
expect "… having said what is missing before installing" before 'missing on this machine' 'installing them'
expect "… without sudo" never '^sudo'
expect "… in one call of apt-get" called '^apt-get install .*gcc g++ cmake ninja-build libsqlite3-dev'
: >"$work/calls"
start ./run again.toml
expect "a second ./run starts the verifier" said 'verifier got again.toml'
expect "… asks the build once and nothing else" bash -c "[ \"\$(grep -vc '^id' '$work/calls')\" = 1 ] && grep -q '^cmake --build' '$work/calls'"

# A build of 250 steps, a warning in the middle of it, into a pipe.
steps='for i in $(seq 250); do echo "${NINJA_STATUS:+[$i/250] }Building $i.o"; [ $i != 120 ] || echo "a.c:1: warning"; done; '
stand_in seq "exec $(type -P seq) \"\$@\""
stand_in cmake "case \$1 in --build) $steps ;; esac"
start ./run
expect "without a terminal the build says a line per tenth" bash -c "[ \"\$(grep -c 'run: built [0-9]*% of 250 steps' '$work/said')\" = 10 ]"
expect "… from the first" said 'built 10% of 250 steps'
expect "… to the last" said 'built 100% of 250 steps'
expect "… shows what the compiler says" said '^a.c:1: warning'
expect "… and none of the steps" bash -c "! grep -q Building '$work/said'"
stand_in cmake 'case $1 in --build) for i in 1 2 3; do echo "[$i/3] Building $i.o"; done; echo "FAILED: 3.o"; exit 1 ;; esac'
start ./run
expect "a build that fails ends with 3" ended 3
expect "… shows why" said '^FAILED: 3.o'
expect "… and a short one counts no tenths" bash -c "! grep -q built '$work/said'"

machine 1000
stand_in_file
stand_in apt-get "$install_all"
stand_in apt-cache ""
stand_in sudo '"$@"'
start ./run
expect "as a user ./run goes through sudo" called '^sudo env DEBIAN_FRONTEND=noninteractive apt-get install'
rm "$work/bin/sudo"
rm -f "$work/bin/cc" "$work/bin/c++" "$work/bin/cmake" "$work/bin/ninja"
rm -rf "$work/tree/build"
start ./run
expect "a user without sudo sees the command" said 'as root: apt-get install gcc'
expect "… and ends with 3" ended 3

machine 0
stand_in_file
stand_in apt-cache "exit 1"
stand_in apt-get "$install_all"
start ./run
expect "unknown packages are looked for after an update" called '^apt-get update'
expect "… and then installed" ended 0

machine 0
stand_in apt-cache ""
stand_in apt-get 'exit 100'
start ./run
expect "an installation that fails ends with 3" ended 3

machine 0
stand_in cmake 'echo "cmake version 3.18.4"'
for tool in cc c++ ninja; do stand_in "$tool" ""; done
start ./run
expect "a CMake that is too old is named" said 'CMake 3.18.4 is too old'
expect "… and ends with 3" ended 3

for name in 'a"b' 'a#b' 'a;b' 'a:b' 'a\b' $'a\nb'; do
    machine 0
    mv "$work/tree" "$work/$name"
    mkdir "$work/tree"
    mv "$work/$name" "$work/tree"
    start "./$name/run"
    expect "a folder that CMake cannot build in is refused" said 'a folder.s name must not contain any of'
    expect "… with 3, and nothing is installed" ended 3
    start "./$name/check"
    expect "… by ./check, too" said 'a folder.s name must not contain any of'
done

machine 0
start ./check --help
expect "./check --help explains" said 'usage: ./check'
start ./check --everything
expect "./check refuses what it does not know with 2" ended 2
machine 0
start ./check
expect "./check asks for the harness too" said 'libcmocka-dev  *the test harness'
expect "… but not for PyTorch outside CI" bash -c "! grep -q 'python3-torch ' '$work/said'"

printf '%d failures\n' "$failures"
[ "$failures" -eq 0 ]
