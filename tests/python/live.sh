#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# live.sh TEST.py VERIFY TRACE_LIBRARY LIBRARY: runs tests of the Python package. Skips (77) without PyTorch or pytest.
set -eu
python=${CDDP_TEST_PYTHON:-/usr/bin/python3}
$python -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null || { echo "skipped: no PyTorch with Gloo"; exit 77; }
$python -c 'import pytest' 2>/dev/null || { echo "skipped: no pytest for $python"; exit 77; }
cd "$(dirname "$1")"
CDDP_VERIFY=$2 CDDP_TRACE_LIBRARY=$3 CDDP_LIBRARY=$4 PYTHONDONTWRITEBYTECODE=1 exec $python -m pytest -q -p no:cacheprovider -p no:faulthandler "$1"
