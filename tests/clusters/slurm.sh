#!/usr/bin/env bash
# A real Slurm on this machine, for `make test-slurm`: one controller, one node, one partition `main`.
#   slurm.sh start   install Debian's slurm-wlm and munge if they are missing, start the daemons, wait for an idle node
#   slurm.sh stop    stop the daemons that `start` started
# Needs root. A machine whose sinfo already answers is left as it is.
set -euo pipefail

state=${PARIBUS_SLURM_DIR:-/var/tmp/paribus-slurm}
conf=/etc/slurm/slurm.conf
marker='# written by tests/clusters/slurm.sh of paribus'

fail() {
    echo "slurm.sh: $*" >&2
    exit 1
}

answers() { command -v sinfo >/dev/null && timeout 10 sinfo --noheader >/dev/null 2>&1; }

install_packages() {
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return
    command -v apt-get >/dev/null || fail 'expected a Slurm installation or apt-get; found neither'
    export DEBIAN_FRONTEND=noninteractive
    # The package lists of a new machine may be missing or old.
    apt-get update -qq >/dev/null && apt-get install -y -qq slurm-wlm munge >/dev/null || fail 'apt-get could not install slurm-wlm and munge'
}

configure() {
    [[ ! -e $conf ]] || grep -qF "$marker" "$conf" || fail "$conf exists and was not written by this script"
    mkdir -p "$state"/{controller,node,log} "$(dirname "$conf")"
    local memory_mb host
    host=$(hostname -s)
    memory_mb=$(awk '/^MemTotal/ {print int($2 / 1280)}' /proc/meminfo) # 80 %
    cat >"$conf" <<CONF
$marker
ClusterName=paribus
SlurmctldHost=$host
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$state/controller
SlurmdSpoolDir=$state/node
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd.log
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
# A requeued job starts again at once, not after two minutes.
SchedulerParameters=bf_interval=1,sched_interval=1,requeue_delay=0
NodeName=$host CPUs=$(nproc) RealMemory=$memory_mb State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
}

start_munge() {
    pgrep -x munged >/dev/null && return
    [[ -s /etc/munge/munge.key ]] || /usr/sbin/mungekey --create
    mkdir -p /run/munge
    chown -R munge: /etc/munge /run/munge /var/lib/munge /var/log/munge
    runuser -u munge -- /usr/sbin/munged
}

wait_for_node() {
    local try
    for try in $(seq 60); do
        sinfo --noheader --format=%t 2>/dev/null | grep -qE '^(idle|mix)' && return
        sleep 1
    done
    tail -n 20 "$state"/log/*.log >&2
    fail 'no node became idle within 60 seconds'
}

case ${1:-} in
    start)
        answers && exit 0
        [[ $(id -u) == 0 ]] || fail 'expected root (or a Slurm that is already running)'
        install_packages
        configure
        start_munge
        pgrep -x slurmctld >/dev/null || slurmctld
        pgrep -x slurmd >/dev/null || slurmd
        wait_for_node
        ;;
    stop)
        [[ -f $conf ]] && grep -qF "$marker" "$conf" || exit 0
        for daemon in slurmd slurmctld munged; do pkill -x "$daemon" || true; done
        for try in $(seq 30); do # a daemon writes its state before it ends
            pgrep -x slurmctld >/dev/null || pgrep -x slurmd >/dev/null || pgrep -x munged >/dev/null || break
            sleep 0.5
        done
        rm -rf "$state" "$conf" || true
        ;;
    *)
        fail "expected start or stop, got ${1:-nothing}"
        ;;
esac
