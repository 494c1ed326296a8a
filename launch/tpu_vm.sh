#!/usr/bin/env bash
# Pretrains on a slice of Cloud TPU VMs: creates it, installs the package on every host, runs, stops, deletes.
#
# Usage:    launch/tpu_vm.sh create|install|run|watch|stop|delete NAME [flags of python -m mlm_jax.train, for run]
# Example:  export PROJECT=my-project ZONE=europe-west4-b TYPE=v5litepod-16
#           launch/tpu_vm.sh create base && launch/tpu_vm.sh install base
#           launch/tpu_vm.sh run base --config=configs/base.py --workdir=/mnt/share/base; launch/tpu_vm.sh delete base
# Dry run:  DRY=1 launch/tpu_vm.sh ...   prints the commands, and runs none.
# Settings: PROJECT, ZONE; for create: TYPE of the slice, VERSION (v2-alpha-tpuv5-lite) of its software, SPOT=1 for one that
#           may be taken away, CREATE with flags of your own; for install: PYTHON (python3.11), which Ubuntu installs.
# Hardware: one slice, of any number of hosts, as `TYPE` says: v5litepod-16 is four hosts of four chips.
#
# create   asks for a queued resource, and waits until the slice is there.
# install  sends what is committed in this clone to every host and installs it there, in a virtual environment.
# run      starts the run on all hosts, where it outlives this connection, and shows what the first one says until the
#          run ends; ends with the run's exit code. The processes find one another by the slice's metadata.
# watch    shows it again, after the connection was lost or Ctrl-C.
# stop     sends SIGTERM to all of them: they save after the same step, and run or watch ends with 3.
# delete   gives the slice back. Nothing on its disks stays.
#
# WORKDIR and the rows must lie on a disk that all hosts share, such as Filestore or a bucket that gcsfuse mounts. The
# same `run` again goes on from the newest whole checkpoint; after a Spot slice was taken away: delete, create, install, run.
#
# Not run: it needs an account. What was run is the same with a gcloud that calls this machine (tests/test_launch.py).
set -euo pipefail

if [[ $# -lt 2 || $2 == -* ]]; then
  sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
action=$1 name=$2
shift 2
needed=(PROJECT ZONE)
[[ $action != create ]] || needed+=(TYPE)
for setting in "${needed[@]}"; do
  if [[ -z ${!setting:-} ]]; then
    echo "tpu_vm.sh: set $setting" >&2
    exit 2
  fi
done
where=(--project="$PROJECT" --zone="$ZONE")
here=$(cd "$(dirname "$0")/.." && pwd)

run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  [[ -n ${DRY:-} ]] || "$@"
}
on() { run gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker="$1" --command="$2"; }

# Follows the run on the first host until it ends; the run's exit code, or 1 where there is none.
watch='cd mlm_jax && test -f run.pid && tail -n +1 --pid="$(cat run.pid)" -f run.log && exit "$(cat run.code || echo 1)"'

case $action in
create)
  read -ra more <<<"${CREATE:-} ${SPOT:+--spot}"
  run gcloud compute tpus queued-resources create "$name" "${where[@]}" --node-id="$name" \
    --accelerator-type="$TYPE" --runtime-version="${VERSION:-v2-alpha-tpuv5-lite}" ${more[@]+"${more[@]}"}
  state=""
  until [[ $state == ACTIVE || -n ${DRY:-} ]]; do
    state=$(gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)')
    echo "$(date +%T) $name: $state"
    case $state in
    ACTIVE) ;;
    FAILED | SUSPENDING | SUSPENDED | DELETING) exit 1 ;;
    *) sleep "${POLL_SECONDS:-30}" ;;
    esac
  done
  ;;
install)
  python=${PYTHON:-python3.11}
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  run git -C "$here" archive --output="$work/mlm_jax.tar" HEAD
  run gcloud compute tpus tpu-vm scp "$work/mlm_jax.tar" "$name": "${where[@]}" --worker=all
  on all "set -e; mkdir -p mlm_jax && tar -xf mlm_jax.tar -C mlm_jax && cd mlm_jax
if ! command -v $python; then sudo apt-get update -q && sudo apt-get install -qy $python $python-venv; fi
$python -m venv venv && venv/bin/pip install -q -e '.[tpu]'"
  ;;
run)
  flags=$(printf ' %q' "$@")
  # a shell outlives the run, and keeps its exit code; `stop` signals the run alone
  on all "cd mlm_jax && rm -f run.code && touch run.log
setsid nohup bash -c 'venv/bin/python -m mlm_jax.train --distributed=tpu \"\$@\" & echo \$! > train.pid; wait \$!; echo \$? > run.code' \
run$flags > run.log 2>&1 < /dev/null &
echo \$! > run.pid"
  on 0 "$watch"
  ;;
watch) on 0 "$watch" ;;
stop) on all 'kill -TERM "$(cat mlm_jax/train.pid)"' ;;
delete) run gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet ;;
*)
  echo "tpu_vm.sh: $action is none of create, install, run, watch, stop, delete" >&2
  exit 2
  ;;
esac
