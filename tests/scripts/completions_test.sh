#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The completions know commands, options, rules, keys, hooks, models and scenarios. Those of zsh and fish are run where they are installed.
#
# usage: completions_test.sh CDDP-VERIFY SOURCE
set -euo pipefail
PATH=$(dirname "$1"):$PATH
cd "$2"
failed=0
script=$(cddp-verify completion bash)

# complete WANTED WORD…: what bash offers behind these words has WANTED.
complete_has() {
    local wanted=$1
    shift
    offered=$(bash -c 'eval "$0"; COMP_WORDS=(cddp-verify "$@"); COMP_CWORD=$#; _cddp_verify; printf "%s\n" "${COMPREPLY[@]}"' "$script" "$@" 2>/dev/null)
    grep -qxF -- "$wanted" <<<"$offered" || { echo "FAILED: cddp-verify $*: $wanted is not offered: ${offered:0:200}"; failed=1; }
}
complete_has explore expl
complete_has --budget explore --bu
complete_has I-PARAMEQ explain I-P
complete_has ddp.static_graph explain ddp.st
complete_has transformer explain tran
complete_has powersgd hook-conformance pow
complete_has ddp.bucket_cap_mb= run --set ddp.buck
complete_has transformer run --set model.name = tr
complete_has topk run -s hook.name =
complete_has scenarios/gan_unused_params.toml prove scenarios/gan
complete_has models list mo
complete_has sarif report run.db --format sa
complete_has gloo backend-conformance glo
complete_has hang new ha

if command -v zsh >/dev/null; then
    cddp-verify completion zsh | zsh -n || { echo "FAILED: zsh cannot read its script"; failed=1; }
    python3 tests/scripts/zsh_completions.py || failed=1
else
    echo "zsh is not installed: its script was not read"
fi
if command -v fish >/dev/null; then
    offered=$(fish -c 'cddp-verify completion fish | source; complete -C "cddp-verify explain I-P"; complete -C "cddp-verify run --set model.name=tr"; complete -C "cddp-verify hook-conformance pow"')
    for wanted in I-PARAMEQ model.name=transformer powersgd; do
        grep -q "^$wanted" <<<"$offered" || { echo "FAILED: fish does not offer $wanted: $offered"; failed=1; }
    done
else
    echo "fish is not installed: its script was not run"
fi
exit $failed
