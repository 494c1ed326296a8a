#!/usr/bin/env bash
# Several processes of one run on this machine, as on as many hosts.
#
# Usage:    launch/local.sh PROCESSES --config=FILE [any other flag of python -m mlm_jax.train]
# Example:  launch/local.sh 2 --config=configs/tiny.py --workdir=runs/two
# Hardware: any. With JAX_PLATFORMS=cpu each process has DEVICES (default 1) CPU devices; with GPUs each process has
#           one of them. config.mesh must fit PROCESSES x devices.
# SIGTERM or Ctrl-C: all processes save after the same step, and it ends with 3. A process that fails ends the job
# within GRACE (default 5) seconds, with the exit code of that process.
set -euo pipefail

if [[ $# -lt 2 || ! $1 =~ ^[1-9][0-9]*$ ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
processes=$1
shift

python=${PYTHON:-python}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
pids=()
forwarded=0
forward() {
  forwarded=1
  kill -TERM "${pids[@]}" 2>/dev/null || true
}
end_all() {
  kill -KILL "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
}
trap forward INT TERM
trap end_all EXIT

IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((processes - 1)))}"
for ((i = 0; i < processes; i++)); do
  # SIGINT would reach them twice, from the terminal and as the SIGTERM that is forwarded
  (
    trap '' INT
    JAX_NUM_CPU_DEVICES=${DEVICES:-1} CUDA_VISIBLE_DEVICES=${gpus[i]:-} exec \
      "$python" -m mlm_jax.train "$@" \
      --coordinator_address="127.0.0.1:$port" --num_processes="$processes" --process_id="$i"
  ) &
  pids+=($!)
done

# The code of the first process that fails counts, and 3 where they stopped on demand. `wait` also ends when a signal
# is forwarded.
result=0
ended=0
while [[ $ended -lt $processes ]]; do
  code=0
  wait -n || code=$?
  if [[ $forwarded -eq 1 && $code -gt 128 ]]; then
    forwarded=0
    continue
  fi
  ended=$((ended + 1))
  if [[ $code -eq 3 ]]; then
    result=3
  elif [[ $code -ne 0 ]]; then
    sleep "${GRACE:-5}" # the others may be about to say the same
    exit "$code"
  fi
done
exit "$result"
