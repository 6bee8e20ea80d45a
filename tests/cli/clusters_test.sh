#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts slow multiprocess
# timeout: 400
# Jobs that a cluster's own launcher starts: mpirun of Open MPI, mpiexec of MPICH, and srun of Slurm, each where it is
# installed. Slurm runs with two nodes on this machine. The bits are those of one host.   usage: clusters_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/ssh_stand_in.sh"
tessera=$(realpath "${1:?usage: clusters_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The training of four ranks on one host with which all claims compare theirs.
shared=$(mktemp -d)
trap 'rm -rf -- "$shared"' EXIT

configure() {
  export PYTHON_BOX=$box
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1}, "gradient_reduction": "each",
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
  "trainer": {"max_steps": 6}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
JSON
}
train() { "$tessera" train "$box/tiny.json" --set "run.dir=$box/$1" "${@:2}" >"$box/$1.out" 2>"$box/$1.err"; }
four_ranks() {
  [[ -e $shared/trained ]] || {
    "$tessera" train "$box/tiny.json" --set "run.dir=$shared/four" -n 4 >"$box/four.out" 2>"$box/four.err" && touch "$shared/trained"
  }
}
same() { "$tessera" compare "$shared/four" "$box/$1"; }
succeeds() { "$@" || { cat "$box"/*.out "$box"/*.err; return 1; }; }
# The agents and ranks of this claim: variables with such a name are passed on to them.
processes() {
  local pid
  for pid in $(pgrep -x -f "$tessera agent"); do
    grep -qsz "^PYTHON_BOX=$box\$" "/proc/$pid/environ" && echo "$pid"
  done
}
none_left() { ! pgrep -f "$box/tiny.json" >/dev/null && [[ -z $(processes) ]]; }
ended() { ! kill -0 "$job" 2>/dev/null; }

# agents_train FLAGS...: a job whose hosts the flags name trains, tells of a lost rank, and leaves nothing behind.
agents_train() {
  expect "it trains" succeeds train two "$@"
  expect "four ranks of one host train" succeeds four_ranks
  expect "the bits are the same" same two
  expect "rank 0's output has no label" grep -qE '^step ' "$box/two.out"
  expect "no line has the launcher's label" test "$(cat "$box"/two.out "$box"/two.err | grep -cE '^(\[[0-9,]+\]|[0-9]+: )')" = 0
  expect "a mistake has the exit code of the agents" test "$(train bad "$@" --set data.sequence_length=1000000000; echo $?)" != 0

  sed -i 's/"max_steps": 6/"max_steps": 100000/' "$box/tiny.json"
  setsid "$tessera" train "$box/tiny.json" --set "run.dir=$box/run" "$@" >"$box/run.out" 2>"$box/run.err" &
  job=$!
  expect "it begins" until_true test -s "$box/run/metrics.jsonl"
  expect "the secret is on no command line" no_secret_on_command_lines
  # Ranks are the children of agents.
  kill -9 "$(pgrep -P "$(processes | paste -sd,)" | tail -1)"
  expect "the job ends" until_true ended
  wait "$job"
  code=$?
  expect "the exit code is that of a lost rank, not $code" test "$code" = 6
  expect "the rank is named" grep -qE 'rank [0-3] was lost: signal 9' "$box/run.err"
  expect "no process is left" until_true none_left

  setsid "$tessera" train "$box/tiny.json" --set "run.dir=$box/killed" "$@" >"$box/killed.out" 2>"$box/killed.err" &
  job=$!
  expect "it begins again" until_true test -s "$box/killed/metrics.jsonl"
  kill -9 "$job"
  expect "nothing outlives the process that started the hosts" until_true none_left

  setsid "$tessera" train "$box/tiny.json" --set "run.dir=$box/stop" "$@" >"$box/stop.out" 2>"$box/stop.err" &
  job=$!
  expect "it begins once more" until_true test -s "$box/stop/metrics.jsonl"
  kill -TERM "$job"
  expect "the job ends after a signal" until_true ended
  wait "$job"
  code=$?
  expect "it was saved: exit code 75, not $code" test "$code" = 75
}

no_secret_on_command_lines() { ! cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -qE '^[0-9a-f]{64}( |$)'; }

by_open_mpi() {
  configure
  stand_in_for_ssh "$box/bin"
  printf '127.0.0.2 slots=2\n127.0.0.3 slots=2\n' >"$box/hosts"
  agents_train --hostfile "$box/hosts" --launcher openmpi --master_addr 127.0.0.1
}
ranks_of_open_mpi() {
  configure
  expect "mpirun starts the ranks" succeeds mpirun -np 4 --oversubscribe "$tessera" train "$box/tiny.json" \
    --set "run.dir=$box/mpi"
  expect "four ranks train" succeeds four_ranks
  expect "the bits are the same" same mpi
}
# mpi_ranks NAME FLAGS...: mpirun starts the ranks on two "hosts", which are addresses of this machine.
mpi_ranks() {
  # The hosts of a test share one name of a socket, which is that of the job: a variable tells them apart.
  # shellcheck disable=SC2016  # mpirun's shell expands
  MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) mpirun -H 127.0.0.2:2,127.0.0.3:2 -np 4 --map-by slot \
    -x MASTER_ADDR -x MASTER_PORT -x TESSERA_CACHE -x PYTHON_BOX \
    bash -c 'TORCHELASTIC_RUN_ID=$((OMPI_COMM_WORLD_RANK / 2)) exec "$@"' _ \
    "$tessera" train "$box/tiny.json" --set "run.dir=$box/$1" "${@:2}" >"$box/$1.out" 2>"$box/$1.err"
}
over_mpi() {
  configure
  stand_in_for_ssh "$box/bin"
  if [[ ! -e $(dirname "$tessera")/../lib/libtessera_mpi.so ]]; then
    expect "a build without MPI says what to install" test "$(mpi_ranks none --set run.transport=mpi
      grep -c 'apt-get install libopenmpi-dev' "$box/none.err")" != 0
    return
  fi
  expect "it trains over MPI" succeeds mpi_ranks mpi --set run.transport=mpi
  expect "MPI moves the data" says "data travels over mpi" "$box/mpi.out"
  expect "it trains over gloo" succeeds mpi_ranks gloo
  expect "gloo moves the data" says "data travels over gloo" "$box/gloo.out"
  expect "four ranks of one host train" succeeds four_ranks
  expect "the bits over MPI are those of one host" same mpi
  expect "the bits over gloo are, too" same gloo
  expect "with ZeRO stage 3 as well" succeeds mpi_ranks mpi3 --set run.transport=mpi --set zero_optimization.stage=3
  expect "to the bit" same mpi3

  sed -i 's/"max_steps": 6/"max_steps": 100000/' "$box/tiny.json"
  mpi_ranks killed --set run.transport=mpi &
  job=$!
  expect "it begins" until_true test -s "$box/killed/metrics.jsonl"
  kill -9 "$(pgrep -f "$tessera train $box/tiny.json" | tail -1)"
  expect "the job ends when a rank is lost" until_true ended
  expect "no process is left" until_true none_left
}
not_over_mpi() {
  configure
  printf '127.0.0.1 slots=1\n127.0.0.2 slots=1\n' >"$box/hosts"
  train none -H "$box/hosts" --set run.transport=mpi
  code=$?
  expect "exit code 2, not $code" test "$code" = 2
  expect "what to type" says "mpirun -np 4" "$box/none.err"
}
# The library is opened only if it is asked for.
needs_no_mpi() { ! ldd "$(dirname "$tessera")/../lib/libtessera.so" | grep -qE 'libmpi|libtessera_mpi'; }

by_hydra() {
  configure
  stand_in_for_ssh "$box/bin"
  printf '127.0.0.2 slots=2\n127.0.0.3 slots=2\n' >"$box/hosts"
  agents_train --hostfile "$box/hosts" --launcher mpich --master_addr 127.0.0.1
}

# Slurm with two nodes, n1 and n2, which are this machine.
start_slurm() {
  local port=$((20000 + RANDOM % 10000)) user name
  user=$(id -un)
  name=$(hostname -s)
  mkdir -m 700 "$box/munge" "$box/state"
  chmod 755 "$box"
  head -c 1024 /dev/urandom >"$box/munge/key"
  chmod 400 "$box/munge/key"
  cat >"$box/slurm.conf" <<CONF
ClusterName=tess
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$box/munge/socket
StateSaveLocation=$box/state
SlurmdSpoolDir=$box/spool.%n
SlurmctldPidFile=$box/slurmctld.pid
SlurmdPidFile=$box/slurmd.%n.pid
SlurmctldLogFile=$box/slurmctld.log
SlurmdLogFile=$box/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName=n1 NodeHostname=$name NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=8 RealMemory=1000
NodeName=n2 NodeHostname=$name NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=8 RealMemory=1000
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
  export SLURM_CONF=$box/slurm.conf
  trap stop_slurm EXIT
  munged --force --key-file="$box/munge/key" --socket="$box/munge/socket" --pid-file="$box/munge/pid" \
    --log-file="$box/munge/log" --seed-file="$box/munge/seed" || return 1
  slurmctld -c && slurmd -N n1 && slurmd -N n2 || return 1
  until_true nodes_are_idle
}
nodes_are_idle() { [[ $(sinfo -h -o '%D %t' 2>/dev/null) == "2 idle" ]]; }
stop_slurm() {
  local file
  for file in "$box"/slurmd.*.pid "$box/slurmctld.pid" "$box/munge/pid"; do
    [[ -s $file ]] && kill "$(cat "$file")"
  done
}

by_slurm() {
  configure
  expect "Slurm runs here" start_slurm
  printf 'n2 slots=2\nn1 slots=2\n' >"$box/hosts"
  agents_train --hostfile "$box/hosts" --launcher slurm --master_addr 127.0.0.1

  configure
  expect "the allocation names the hosts" succeeds salloc -Q -N 2 --ntasks-per-node=2 \
    "$tessera" train "$box/tiny.json" --set "run.dir=$box/alloc" --launcher slurm --master_addr 127.0.0.1
  expect "the bits are the same" same alloc
  # Ranks that srun starts on one node find each other by its variables.
  expect "srun starts the ranks" succeeds srun -N 1 -n 4 -w n1 "$tessera" train "$box/tiny.json" \
    --set "run.dir=$box/ranks"
  expect "these bits are the same, too" same ranks
}

ran=0
# when "PROGRAMS" TEXT FUNCTION: a claim that needs programs, or a line that says which one is missing.
when() {
  local program
  for program in $1; do
    if ! command -v "$program" >/dev/null; then
      echo "skipped  $2: there is no $program here (apt-get install openmpi-bin, mpich, or slurm-wlm and munge)"
      return
    fi
  done
  ran=1
  claim "${@:2}"
}
PATH=$PATH:/usr/sbin
when "mpirun.openmpi" "mpirun of Open MPI starts the hosts" by_open_mpi
when "mpirun.openmpi" "ranks that mpirun started find each other" ranks_of_open_mpi
when "mpirun.openmpi" "ranks on two hosts exchange data over MPI, with the bits of one host" over_mpi
claim "ranks that mpirun has not started are refused with run.transport mpi" not_over_mpi
claim "the program needs no MPI to start" needs_no_mpi
when "mpiexec.hydra" "mpiexec of MPICH starts the hosts" by_hydra
when "srun slurmctld slurmd munged" "srun of Slurm starts the hosts" by_slurm

((ran)) || exit 77
claims_done
