#!/usr/bin/env bash
# Several processes of one run on this machine, as on as many hosts.
#
# Usage:    launch/local.sh PROCESSES --config=FILE [any other flag of python -m mlm_jax.train]
# Example:  launch/local.sh 2 --config=configs/tiny.py --workdir=runs/two
# Hardware: any. With JAX_PLATFORMS=cpu each process has DEVICES (default 1) CPU devices; with GPUs each process has
#           one of them. config.mesh must fit PROCESSES x devices.
# Ends with the exit code of the first process that fails; the others are ended then.
set -euo pipefail

if [[ $# -lt 2 || ! $1 =~ ^[1-9][0-9]*$ ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
processes=$1
shift

python=${PYTHON:-python}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
pids=()
end_all() { kill "${pids[@]}" 2>/dev/null || true; }
trap end_all INT TERM EXIT

IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((processes - 1)))}"
for ((i = 0; i < processes; i++)); do
  JAX_NUM_CPU_DEVICES=${DEVICES:-1} CUDA_VISIBLE_DEVICES=${gpus[i]:-} \
    "$python" -m mlm_jax.train "$@" \
    --coordinator_address="127.0.0.1:$port" --num_processes="$processes" --process_id="$i" &
  pids+=($!)
done

for ((i = 0; i < processes; i++)); do
  code=0
  wait -n || code=$?
  if [[ $code -ne 0 ]]; then
    exit "$code"
  fi
done
