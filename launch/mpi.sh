#!/usr/bin/env bash
# Pretrains with several processes that mpirun of Open MPI starts, on one host or many.
#
# Usage:    launch/mpi.sh HOST[:PROCESSES][,HOST[:PROCESSES] ...] --config=FILE [any other flag of python -m mlm_jax.train]
# Example:  launch/mpi.sh node1:8,node2:8 --config=configs/base.py --workdir=/shared/base
#           launch/mpi.sh localhost:2 --config=configs/tiny.py --workdir=runs/two
# Dry run:  DRY=1 launch/mpi.sh ...   prints the command, and runs nothing.
# Settings: PYTHON (python) of the environment that has the package, at the same path on all hosts; PORT (by chance) of
#           the first host, where the processes meet; MPIRUN (mpirun) with options of your own.
# Hardware: any. The GPUs of a host are shared equally by its processes; on CPUs each has JAX_NUM_CPU_DEVICES (1) devices.
#
# Needs Open MPI 4 or 5 on all hosts and a login from this one to the others without a password (ssh). The folder of the
# clone, WORKDIR and the rows must lie on a disk that all hosts share. Variables whose names begin with JAX_, XLA_, NCCL_
# or CUDA_, and PATH, PYTHONPATH and LD_LIBRARY_PATH go with it.
# SIGTERM or Ctrl-C to this script: all processes save after the same step, and it ends with 3. Do not send SIGTERM to
# mpirun itself, which kills at once; under Slurm, where each process would get it, take launch/slurm.sbatch.
# A process that fails or dies ends the job, with its exit code; the same command goes on from the newest whole checkpoint.
#
# Run with Open MPI 4.1 on one host without GPUs (tests/test_jobs.py; benchmarks/RESULTS.md). Not run: several hosts,
# GPUs, Open MPI 5.
set -euo pipefail

if [[ $# -lt 2 || $1 == -* ]]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
hosts=$1
shift

processes=0
IFS=, read -ra parts <<<"$hosts"
for part in "${parts[@]}"; do
  count=${part##*:}
  [[ $part == *:* ]] || count=1
  if [[ ! $part =~ ^[^:]+(:[1-9][0-9]*)?$ ]]; then
    echo "mpi.sh: $part is not HOST or HOST:PROCESSES" >&2
    exit 2
  fi
  processes=$((processes + count))
done
first=${parts[0]%%:*}
if [[ ${#parts[@]} -gt 1 && $first == localhost ]]; then
  echo "mpi.sh: the other hosts do not find this one by the name localhost" >&2
  exit 2
fi

read -ra mpirun <<<"${MPIRUN:-mpirun}"
python=$(command -v "${PYTHON:-python}") || { echo "mpi.sh: there is no ${PYTHON:-python}" >&2 && exit 2; }
export JAX_COORDINATOR_ADDRESS=$first:${PORT:-$((61440 + (RANDOM + $$) % 4096))}
export JAX_NUM_CPU_DEVICES=${JAX_NUM_CPU_DEVICES:-1}
passed=()
while read -r name; do
  case $name in
  JAX_* | XLA_* | NCCL_* | CUDA_* | PATH | PYTHONPATH | LD_LIBRARY_PATH) passed+=(-x "$name") ;;
  esac
done < <(compgen -e)

# by slot, so that process 0 runs on the first host; unbound, since each has threads of its own
line=("${mpirun[@]}" -n "$processes" --host "$hosts" --map-by slot --bind-to none "${passed[@]}"
  "$python" -m mlm_jax.train --distributed=mpi "$@")
printf '+'
printf ' %q' "${line[@]}"
printf '\n'
if [[ -n ${DRY:-} ]]; then exit 0; fi

# in a session of its own, where a Ctrl-C does not reach it
setsid "${line[@]}" </dev/null &
job=$!
signalled=0
forward() {
  signalled=1
  kill -USR1 "$job" 2>/dev/null || true
}
trap forward INT TERM
trap 'kill -TERM "$job" 2>/dev/null || true' EXIT

while :; do # wait also ends when a signal is forwarded
  code=0
  wait "$job" || code=$?
  if [[ $signalled -eq 0 ]]; then exit "$code"; fi
  signalled=0
done
