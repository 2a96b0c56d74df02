#!/usr/bin/env bash
# Starts SLURM on this machine, for tests: munged, slurmctld, and one slurmd per node, all as root.
#   slurm_cluster.sh up [NODES]        NODES: default 2; each runs at most one job at a time
#   export SLURM_CONF=$(slurm_cluster.sh conf)
#   slurm_cluster.sh down
# All files are under $LM_MIA_SLURM_DIR; nothing under /etc is read or written. systemd, cgroups and slurmdbd are not
# needed. Jobs of the partition urgent preempt those of batch, which are requeued 5 s after SIGTERM.
# The processes of a job connect to the host name of its first node: those of the first two nodes resolve.
set -euo pipefail
PATH=$PATH:/usr/sbin
folder=${LM_MIA_SLURM_DIR:?must name a folder}
conf=$folder/slurm.conf
export SLURM_CONF=$conf
host=$(hostname -s)

name() {
  case $1 in 0) echo "$host" ;; 1) echo localhost ;; *) echo "node$1" ;; esac
}

write_conf() {
  cat >"$conf" <<EOT
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=$folder/munge/munge.sock,cred_expire=5
SlurmctldPort=16817
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
ReturnToService=2
KillWait=5
MaxArraySize=1001
SlurmctldTimeout=30
SlurmdTimeout=60
MailProg=/bin/true
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
DebugFlags=NO_CONF_HASH
EOT
  for ((i = 0; i < $1; i++)); do
    echo "NodeName=$(name "$i") NodeHostname=$host NodeAddr=127.0.0.1 Port=$((16820 + i)) CPUs=1 RealMemory=4096 State=UNKNOWN" >>"$conf"
  done
  cat >>"$conf" <<'EOT'
PartitionName=batch Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=urgent Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
EOT
}

up() {
  local nodes=${1:-2}
  if [ "$host" = localhost ] || ! getent hosts "$host" >/dev/null; then
    echo "the name of this machine, $host, must resolve, and not be localhost" >&2
    return 1
  fi
  mkdir -p "$folder"/{state,spool,log,munge}
  chmod 755 "$folder" "$folder/munge"
  write_conf "$nodes"
  (umask 077 && head -c 128 /dev/urandom >"$folder/munge/munge.key")
  munged --force --key-file="$folder/munge/munge.key" --socket="$folder/munge/munge.sock" \
    --pid-file="$folder/munge/munged.pid" --log-file="$folder/munge/munged.log" --seed-file="$folder/munge/munged.seed"
  slurmctld -c -f "$conf"
  for ((i = 0; i < nodes; i++)); do slurmd -N "$(name "$i")" -f "$conf"; done
  for ((i = 0; i < 100; i++)); do
    [ "$(sinfo --noheader --Node --partition=batch --format=%t | grep -c '^idle$')" = "$nodes" ] && return 0
    sleep 0.2
  done
  sinfo >&2
  tail -n 20 "$folder"/log/*.log >&2
  return 1
}

ours() { # prints the ids of the daemons and of the processes of jobs, which were started with our SLURM_CONF
  local process
  for process in /proc/[0-9]*; do
    grep -qzxF "SLURM_CONF=$conf" "$process/environ" 2>/dev/null || continue
    if grep -qxE 'slurmctld|slurmd|slurmstepd|munged' "$process/comm" 2>/dev/null ||
      grep -qz '^SLURM_JOB_ID=' "$process/environ" 2>/dev/null; then
      echo "${process#/proc/}"
    fi
  done
}

down() {
  [ -f "$conf" ] || return 0
  scancel --user="$(id -un)" 2>/dev/null || true
  for ((i = 0; i < 60; i++)); do # a step does not end without slurmctld
    [ -z "$(squeue --noheader 2>/dev/null)" ] && break
    sleep 0.3
  done
  for signal in TERM KILL; do
    ours | xargs -r kill -s "$signal" 2>/dev/null || true
    for ((i = 0; i < 20; i++)); do
      [ -z "$(ours)" ] && return 0
      sleep 0.3
    done
  done
  echo "processes that do not end: $(ours | xargs)" >&2
  return 1
}

case "${1:-}" in
  up) up "${2:-2}" ;;
  down) down ;;
  conf) echo "$conf" ;;
  *)
    echo "usage: $0 up [NODES] | down | conf" >&2
    exit 2
    ;;
esac
