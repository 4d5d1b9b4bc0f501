#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# openmpi.sh PREFIX COUNT MPIRUN ARGUMENT…: becomes mpirun on the first of COUNT hosts, which are the network namespaces PREFIX0, PREFIX1 … with
# the addresses 10.77.0.1, 10.77.0.2 … on eth0; one rank on each.
#
# What starts Open MPI's daemons on a host is this script again, as `openmpi.sh agent PREFIX [-OPTION…] ADDRESS COMMAND…`: it enters the
# namespace, as ssh enters a host. Every host has its own name, because Open MPI takes two of one name for one.
set -u
if [ "$1" = agent ]; then
    prefix=$2
    shift 2
    while [ "${1#-}" != "$1" ]; do shift; done
    host=$((${1##*.} - 1))
    shift
    exec ip netns exec "$prefix$host" unshare --uts bash -c "hostname host$host; $*"
fi
self=$(realpath "${BASH_SOURCE[0]}") prefix=$1 count=$2 mpirun=$3
shift 3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_oob_tcp_if_include=eth0 OMPI_MCA_btl_tcp_if_include=eth0
exec ip netns exec "${prefix}0" unshare --uts bash -c 'hostname host0; exec "$@"' openmpi.sh "$mpirun" \
    --host "$(seq -s , -f '10.77.0.%g' "$count")" -np "$count" --mca plm_rsh_agent "$self agent $prefix" "$@"
