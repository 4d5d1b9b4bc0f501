#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# newer.sh SOURCE VERIFY TRACE_LIBRARY LIBRARY: the same tests under PyTorch 2. CDDP_NEWER_PYTHON names a Python that has it, and pytest:
# of a virtual environment, or of a newer distribution's packages in a private root. Skips (77) without.
set -eu
python=${CDDP_NEWER_PYTHON:-}
[ -n "$python" ] || { echo "skipped: CDDP_NEWER_PYTHON names no Python with PyTorch 2"; exit 77; }
version=$("$python" -c 'import torch; print(torch.__version__)') || { echo "skipped: $python has no torch"; exit 77; }
case $version in 1.*) echo "skipped: $python has torch $version"; exit 77 ;; esac
echo "PyTorch $version"
here=$1
shift
for subject in package programs jobs compare backend process_group pytorch_own explore; do
    CDDP_TEST_PYTHON=$python "$here/live.sh" "$here/test_$subject.py" "$@"
done
