#!/usr/bin/env bash
# A Slurm of one node on this machine, in a folder of its own, for as long as a command runs.
#
# Usage:    tests/slurm.sh COMMAND [ARGUMENT ...]
# Example:  tests/slurm.sh bash -c 'sinfo && srun -n 2 hostname'
# The command sees it by SLURM_CONF. Ends with the command's exit code, or with 1 where Slurm did not start; what was
# started is ended in any case. Needs root and the Debian packages slurm-wlm and munge. There are two partitions: jobs
# of `urgent` preempt those of `normal`, which then wait to be requeued. Jobs get SIGTERM, and 30 seconds (KillWait).
set -euo pipefail

if [[ $# -lt 1 ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

work=$(mktemp -d)
chmod 755 "$work" # munge wants folders that others may read
pids=() started=""
end() {
  local pid
  trap - EXIT
  if [[ -n $started ]]; then # no job may outlive it
    timeout 5 scancel --signal=KILL --full --user=root 2>/dev/null || true
    timeout 5 scancel --user=root 2>/dev/null || true
    for ((i = 0; i < 50; i++)); do
      [[ -n $(timeout 5 squeue -h 2>/dev/null) ]] || break
      sleep 0.2
    done
  fi
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    pid=${pids[i]}
    kill -TERM "$pid" 2>/dev/null || true
  done
  wait "${pids[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap end EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
failed() {
  echo "slurm.sh: $1" >&2
  tail -n 5 "$work"/*.log >&2 || true
  exit 1
}

host=$(hostname -s)
mkdir -m 755 "$work/munge" "$work/state" "$work/spool"
head -c 128 /dev/urandom >"$work/munge.key"
chmod 600 "$work/munge.key"
cat >"$work/slurm.conf" <<END_OF_CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
MinJobAge=3600
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=normal Nodes=$host Default=YES PriorityTier=1 GraceTime=30 State=UP
PartitionName=urgent Nodes=$host PriorityTier=2 State=UP
END_OF_CONF
export SLURM_CONF=$work/slurm.conf

munged --foreground --force --socket="$work/munge/socket" --key-file="$work/munge.key" --num-threads=2 \
  --log-file="$work/munged.log" --pid-file="$work/munge/pid" --seed-file="$work/munge/seed" >"$work/munged.out.log" 2>&1 &
pids+=($!)
slurmctld -D >"$work/slurmctld.out.log" 2>&1 &
pids+=($!)
slurmd -D -N "$host" >"$work/slurmd.out.log" 2>&1 &
pids+=($!)

for ((i = 0; i < 150; i++)); do
  for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || failed "a daemon ended"; done
  if [[ $(sinfo -h -p normal -t idle -o %D 2>/dev/null) == 1 ]]; then break; fi
  sleep 0.2
done
[[ $(sinfo -h -p normal -t idle -o %D) == 1 ]] || failed "the node does not become idle"

started=1
code=0
"$@" <&0 & # so that a signal to this script is heard before the command ends
pids+=($!)
wait $! || code=$?
exit "$code"
