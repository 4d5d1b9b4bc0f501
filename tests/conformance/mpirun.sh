#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mpirun.sh MPIEXEC RANKS PROGRAM …: starts an MPI program on this machine alone, also as root, also with more
# ranks than cores, over shared memory. Leaks inside the MPI library are not ours to report.
mpiexec=$1 ranks=$2
shift 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_pml=ob1
export OMPI_MCA_btl=self,vader OMPI_MCA_oob_tcp_if_include=lo
suppressions=$(cd "$(dirname "$0")/../support" && pwd)/lsan.supp
export LSAN_OPTIONS="suppressions=$suppressions:print_suppressions=0" ASAN_OPTIONS="fast_unwind_on_malloc=0:${ASAN_OPTIONS:-}"
"$mpiexec" -n "$ranks" "$@"
