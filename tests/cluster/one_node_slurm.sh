#!/usr/bin/env bash
# Runs a command with a real Slurm of one node, this machine, whose daemons live in a temporary folder and end with it.
#
#   one_node_slurm.sh COMMAND [ARGUMENTS...]
#
# The command finds SLURM_CONF. Status: the command's; 77, with the reason on stderr, if Slurm cannot run here.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

unable() {
  echo "no Slurm here: $*" >&2
  exit 77
}

for program in munged slurmctld slurmd srun sbatch sinfo; do
  command -v "$program" >/dev/null || unable "$program is not installed (Debian: munge slurmctld slurmd slurm-client)"
done

folder=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-slurm.XXXXXX") || exit 1
daemons=()
finish() {
  ((${#daemons[@]} == 0)) || kill "${daemons[@]}" 2>/dev/null
  for pid in "${daemons[@]}"; do
    for ((i = 0; i < 100; ++i)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.05
    done
    kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 143' TERM INT HUP

free_port() {
  local port
  for ((i = 0; i < 100; ++i)); do
    port=$((20000 + RANDOM % 10000))
    (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

mkdir "$folder/state" "$folder/spool" "$folder/munge"
chmod 711 "$folder" "$folder/munge"
(umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
host=$(hostname -s)
user=$(id -un)
version=$(slurmd -V | sed -E 's/[^0-9]*([0-9]+).*/\1/')
cat >"$folder/slurm.conf" <<END
ClusterName=lockstep
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:4
END
# The daemon of 22.05 insists on a cgroup plugin, and older ones do not know the setting.
if ((version >= 23)); then
  echo "CgroupPlugin=disabled" >"$folder/cgroup.conf"
elif ((version == 22)); then
  echo "CgroupPlugin=autodetect" >"$folder/cgroup.conf"
fi
export SLURM_CONF=$folder/slurm.conf

munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
  --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" >"$folder/munge.log" 2>&1 &
daemons+=($!)
for ((i = 0; i < 100; ++i)); do
  [[ -S $folder/munge/socket ]] && break
  kill -0 "${daemons[0]}" 2>/dev/null || unable "munged: $(tail -n 1 "$folder/munge.log")"
  sleep 0.05
done
slurmctld -D -c >"$folder/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D -c >"$folder/slurmd.log" 2>&1 &
daemons+=($!)

for ((i = 0; i < 200; ++i)); do
  [[ $(sinfo --noheader --format=%t 2>/dev/null) == idle ]] && break
  for daemon in 1:slurmctld 2:slurmd; do
    name=${daemon#*:}
    kill -0 "${daemons[${daemon%:*}]}" 2>/dev/null ||
      unable "$name ended: $(grep -iE 'fatal|error' "$folder/$name.log" | tail -n 1)"
  done
  sleep 0.1
done
state=$(sinfo --noheader --format=%t 2>&1)
[[ $state == idle ]] || unable "after 20 s the node's state is '$state'; $(tail -n 1 "$folder/slurmd.log")"

"$@"
status=$?
# A job that is still on its way out would be left without the daemon that it reports to.
for ((i = 0; i < 100; ++i)); do
  [[ $(sinfo --noheader --format=%t 2>/dev/null) == idle ]] && break
  sleep 0.1
done
exit "$status"
