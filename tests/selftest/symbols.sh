#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program and the library contain no injection point: symbols.sh NM FILE…
set -euo pipefail
nm=$1
shift
for file in "$@"; do
    if "$nm" "$file" | grep -i inject; then
        echo "$file: contains the symbols above; points belong to the self-test alone"
        exit 1
    fi
    [ "$("$nm" "$file" | wc -l)" -gt 100 ] || { echo "$file: has no symbols to look at"; exit 1; }
done
