#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts slow multiprocess
# timeout: 600
# Several hosts: the same bits as one, and an end that is reported. The hosts are addresses of this machine, "hosts" behind a
# stand-in for ssh, and, where it may make them, network namespaces.   usage: hosts_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/ssh_stand_in.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/namespaces.sh"
tessera=$(realpath "${1:?usage: hosts_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
# Trainings on one host with which several claims compare theirs.
shared=$(mktemp -d)
trap 'rm -rf -- "$shared"' EXIT

configure() {
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
  "trainer": {"max_steps": ${1:-6}}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": ${2:-3}}
}
JSON
  printf '127.0.0.1 slots=2\n127.0.0.2 slots=2  # another address of this machine\n' >"$box/hosts"
}
train() { "$tessera" train "$box/tiny.json" --set "run.dir=$box/$1" "${@:2}" >"$box/$1.out" 2>"$box/$1.err"; }
# one_rank: trains one rank, unless an earlier claim has. same RUN: a run of this claim has its bits.
one_rank() {
  [[ -e $shared/trained ]] || {
    "$tessera" train "$box/tiny.json" --set "run.dir=$shared/one" >"$box/one.out" 2>"$box/one.err" && touch "$shared/trained"
  }
}
same() { "$tessera" compare "$shared/one" "$box/$1"; }
succeeds() { "$@" || { cat "$box"/*.err; return 1; }; }
none_left() { ! pgrep -f "$box/tiny.json" >/dev/null && ! pgrep -x -f "$tessera agent" >/dev/null; }

two_hosts_equal_one() {
  configure
  expect "one rank trains" succeeds one_rank
  expect "two hosts train" succeeds train two --hostfile "$box/hosts" --set gradient_reduction=each "$@"
  expect "the table names the hosts" grep -qE '^127\.0\.0\.2 +2-3 .* GiB .* \+?-?0\.[0-9] s$' "$box/two.out"
  expect "the layout has four ranks" says "4 ranks" "$box/two.out"
  expect "two hosts give the bits of one rank" same two
  expect "gradients travel as often as the file says" says '"gradient_reduction": "each"' "$box/two/config.json"
  expect "no process is left" until_true none_left
}
claim "gloo over 2 x 2 gives the bits of one rank" two_hosts_equal_one
claim "so it does with ZeRO stage 3" two_hosts_equal_one --set zero_optimization.stage=3
claim "so it does with a pipeline that crosses" two_hosts_equal_one --set parallel.pipeline=2

groups_of_weights() {
  configure
  plan() { "$tessera" train "$box/tiny.json" -H "$box/hosts" --dry-run --set zero_optimization.stage=3 "$@" >"$box/plan.out" 2>"$box/plan.err"; }
  expect "auto is read" succeeds plan --json --set zero_optimization.zero_hpz_partition_size=auto
  expect "auto is the ranks of a host" says '"zero_hpz_partition_size":2' "$box/plan.out"
  expect "auto is read for MiCS" succeeds plan --json --set zero_optimization.mics_shard_size=auto --set parallel.tensor=2
  expect "ranks that share layers count once" says '"mics_shard_size":1' "$box/plan.out"
  printf '127.0.0.1 slots=2\n127.0.0.2 slots=2\n127.0.0.3 slots=2\n' >"$box/hosts"
  expect "a group that crosses is obeyed" succeeds plan --set zero_optimization.mics_shard_size=3 --set train_batch_size=12
  expect "and told" says "groups of 3 ranks that hold the weights cross between hosts of 2" "$box/plan.err"
  local slots
  for slots in "3 1" "1 3"; do
    # shellcheck disable=SC2086  # two words
    printf '127.0.0.1 slots=%s\n127.0.0.2 slots=%s\n' $slots >"$box/hosts"
    train refused -H "$box/hosts" --set zero_optimization.stage=3 --set zero_optimization.mics_shard_size=auto
    code=$?
    expect "hosts with $slots ranks are refused: exit code 2, not $code" test "$code" = 2
    expect "in one error" test "$(grep -c '^error' "$box/refused.err")" = 1
    expect "which names the hosts" says "127.0.0.1 has ${slots% *}, 127.0.0.2 has ${slots#* }" "$box/refused.err"
  done
}
claim "groups that hold the weights are those of a host" groups_of_weights

three_steps_of_rlhf() {
  configure
  printf '127.0.0.1 slots=1\n127.0.0.2 slots=1\n' >"$box/hosts"
  examples/rlhf/make_pairs.py examples/data/shakespeare.txt 40 >"$box/pairs.jsonl"
  for name in two one; do
    cat >"$box/$name.json" <<JSON
{
  "dir": "$box/$name",
  "common": {"data": {"train": "$box/pairs.jsonl", "sequence_length": 192}, "train_batch_size": 4, "gradient_reduction": "each",
             "train_micro_batch_size_per_gpu": 2, "trainer": {"max_steps": 2}, "run": {"threads_per_rank": 1}},
  "sft": {"model": {"family": "llama", "num_layers": 1, "hidden_size": 32, "num_heads": 2}, "data": {"map": {"completion": "chosen"}}},
  "reward": {},
  "rl": {"rl": {"max_new_tokens": 4}}
}
JSON
  done
  expect "one rank trains" succeeds "$tessera" rlhf "$box/one.json" >"$box/one.out" 2>"$box/one.err"
  expect "two hosts train" succeeds "$tessera" rlhf "$box/two.json" --step 1 --hostfile "$box/hosts" --deployment-type multi_node \
    >"$box/two.out" 2>"$box/two.err"
  # The key names the hosts as well as the flag does.
  expect "two hosts go on" succeeds "$tessera" rlhf "$box/two.json" --step 2 3 --set "common.run.hosts=$box/hosts" --deployment-type multi_node \
    >>"$box/two.out" 2>>"$box/two.err"
  expect "each step has both hosts" test "$(grep -cE '^127\.0\.0\.2 +1 ' "$box/two.out")" = 3
  for step in 1-sft 2-reward 3-rl; do
    expect "$step has the bits of one rank" "$tessera" compare "$box/one/$step" "$box/two/$step"
  done
  expect "the reward model compared tokens" says '"compare": "tokens"' "$box/two/2-reward/config.json"
  expect "no process is left" until_true none_left
}
claim "fine-tuning, a reward model and reinforcement run on two hosts" three_steps_of_rlhf

four_ranks_of_one_host() {
  configure
  expect "one rank trains" succeeds one_rank
  expect "four ranks train" succeeds train four -n 4
  expect "they have the bits of one rank" same four
}
claim "shm over 4 gives them, too" four_ranks_of_one_host

agents_behind_ssh() {
  configure
  stand_in_for_ssh "$box/bin"
  printf 'node-a slots=1\nnode-b slots=1\n' >"$box/hosts"
  printf 'FROM_FILE=1\n' >"$box/env"
  DS_ENV_FILE=$box/env expect "it trains" succeeds train two -H "$box/hosts" --master_addr 127.0.0.1 --ssh_port 2222 \
    --set gradient_reduction=each
  expect "ssh was asked for both" says "-p 2222 node-b cd " "$box/bin/calls"
  expect "the variables of the file are passed on" says "'FROM_FILE=1'" "$box/bin/calls"
  expect "the secret is on no command line" test "$(grep -cE '[0-9a-f]{64}' "$box/bin/calls")" = 0
  expect "one rank trains" succeeds one_rank
  expect "they have its bits" same two
}
claim "agents are started over ssh" agents_behind_ssh

# start NAME...: a job that would go on, in the background as a process group.
start() {
  setsid "$tessera" train "$box/tiny.json" --set "run.dir=$box/$1" --hostfile "$box/hosts" "${@:2}" \
    >"$box/$1.out" 2>"$box/$1.err" &
  job=$!
  expect "it begins" until_true test -s "$box/$1/metrics.jsonl"
}
ended() { ! kill -0 "$job" 2>/dev/null; }
agents() { pgrep -P "$job"; }

rank_of_the_other_host_dies() {
  configure 100000 0
  start run
  victim=$(pgrep -P "$(agents | tail -1)" | head -1)
  kill -9 "$victim"
  begin=$(date +%s%N)
  expect "the job ends" until_true ended
  wait "$job"
  code=$?
  took=$((($(date +%s%N) - begin) / 1000000))
  expect "the exit code is that of a lost rank, not $code" test "$code" = 6
  expect "it ends within 4 s on a busy machine, not $took ms" test "$took" -lt 4000
  expect "the rank is named" says "rank 2 was lost: signal 9 (SIGKILL)" "$box/run.err"
  expect "and its host" says "its host is 127.0.0.2" "$box/run.err"
  "$tessera" doctor "$box/run" >"$box/doctor"
  expect "the doctor names both" says "rank 2 of host 127.0.0.2 broke it: rank 2 was lost" "$box/doctor"
  expect "and has a line for each rank" test "$(grep -cE '^rank [0-3] of host 127.0.0.[12]: step [0-9]+, its operation' "$box/doctor")" = 4
  expect "no process is left" until_true none_left
}
claim "the death of a rank on another host ends the job and is reported" rank_of_the_other_host_dies

agent_dies() {
  configure 100000 0
  start run
  kill -9 "$(agents | tail -1)"
  expect "the job ends" until_true ended
  wait "$job"
  code=$?
  expect "the exit code is that of a lost host, not $code" test "$code" = 6
  expect "the host is named" says "host 127.0.0.2 was lost" "$box/run.err"
  "$tessera" doctor "$box/run" >"$box/doctor"
  expect "the doctor names it, too" grep -qE "^ranks? 0.* stopped because: host 127.0.0.2 was lost \(ranks 2 to 3\)" "$box/doctor"
  expect "no process is left" until_true none_left
}
claim "the death of an agent ends the job and names the host" agent_dies

launcher_dies() {
  configure 100000 0
  start run
  kill -9 "$job"
  expect "no process is left" until_true none_left
}
claim "nothing outlives the process that started the hosts" launcher_dies

stops_and_goes_on() {
  configure 100000 0
  start run
  kill -TERM "$job"
  expect "the job ends" until_true ended
  wait "$job"
  code=$?
  expect "it was saved: exit code 75, not $code" test "$code" = 75
  expect "no process is left" until_true none_left
  last=$(find "$box/run/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -1)
  expect "there is a checkpoint" test -n "$last"
  step=$((10#${last##*step-}))
  expect "it goes on" succeeds train run --hostfile "$box/hosts" --set "trainer.max_steps=$((step + 2))"
  expect "one rank that was never disturbed trains" succeeds train one --set "trainer.max_steps=$((step + 2))"
  expect "the bits are the same" "$tessera" compare "$box/one" "$box/run"
}
claim "a signal stops all hosts after a checkpoint, from which they go on" stops_and_goes_on

by_hand() {
  configure
  # As torchrun is started by hand on every host.
  local common=(--nnodes 2 -n 2 --master_addr 127.0.0.1 --master_port $((20000 + RANDOM % 10000)))
  "$tessera" train "$box/tiny.json" --set "run.dir=$box/two" "${common[@]}" --node_rank 1 >"$box/b.out" 2>"$box/b.err" &
  other=$!
  expect "the first host trains" succeeds train two "${common[@]}" --node_rank 0
  expect "the second one too" wait "$other"
  expect "one rank trains" succeeds one_rank
  expect "the bits are the same" same two
}
claim "hosts that are started by hand meet" by_hand

by_variables() {
  configure
  local port=$((20000 + RANDOM % 10000)) i
  printf '%s' "$RANDOM-not-so-secret-but-more-than-32-bytes" >"$box/secret"
  chmod 600 "$box/secret"
  export TESSERA_SECRET_FILE=$box/secret MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=4 LOCAL_WORLD_SIZE=2
  # Each pair has an abstract socket of its own: their jobs have different names.
  for i in 1 2 3; do
    RANK=$i LOCAL_RANK=$((i % 2)) TORCHELASTIC_RUN_ID=host$((i / 2)) "$tessera" train "$box/tiny.json" \
      --set "run.dir=$box/two" >"$box/$i.out" 2>"$box/$i.err" &
  done
  RANK=0 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=host0 expect "rank 0 trains" succeeds train two
  wait
  expect "no warning of a missing secret" test "$(grep -c 'no secret' "$box/two.err")" = 0
  unset MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE
  expect "one rank trains" succeeds one_rank
  expect "the bits are the same" same two
}
claim "ranks that torchrun started on two hosts meet" by_variables

by_jsrun() {
  configure
  # Two hosts with a rank each. No rank runs on the launch node, which LSF names first.
  export JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_SIZE=1 JSM_NAMESPACE_LOCAL_RANK=0
  export LSB_MCPU_HOSTS="no-such-host.invalid 1 127.0.0.1 42 127.0.0.2 42" MASTER_PORT=$((20000 + RANDOM % 10000))
  local each=(--set gradient_reduction=each)
  JSM_NAMESPACE_RANK=1 PMIX_NAMESPACE=b "$tessera" train "$box/tiny.json" --set "run.dir=$box/two" "${each[@]}" \
    >"$box/b.out" 2>"$box/b.err" &
  other=$!
  JSM_NAMESPACE_RANK=0 PMIX_NAMESPACE=a expect "rank 0 trains" succeeds train two "${each[@]}"
  expect "rank 1 trains" wait "$other"
  unset JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_SIZE JSM_NAMESPACE_LOCAL_RANK LSB_MCPU_HOSTS MASTER_PORT
  expect "one rank trains" succeeds one_rank
  expect "the bits are the same" same two
}
claim "ranks that jsrun of LSF started on two hosts meet" by_jsrun

flags_of_processes() {
  configure 100000 0
  mkdir "$box/tmp"
  TMPDIR=$box/tmp setsid "$tessera" train "$box/tiny.json" --set "run.dir=$box/run" -n 2 --save_pid --enable_each_rank_log "$box/each" \
    --bind_cores_to_rank >"$box/run.out" 2>"$box/run.err" &
  job=$!
  expect "it begins" until_true test -s "$box/run/metrics.jsonl"
  expect "the file with the number of the process is there" test -e "$box/tmp/$job.ds"
  local rank cores=()
  for rank in $(pgrep -P "$job"); do cores+=("$(taskset -cp "$rank" | sed 's/.*: //')"); done
  expect "there are two ranks" test "${#cores[@]}" = 2
  if (($(nproc) >= 2)); then
    expect "each has processors of its own, not ${cores[*]}" test "${cores[0]}" != "${cores[1]}"
  fi
  kill -TERM "$job"
  expect "the job ends" until_true ended
  expect "the file goes with it" test ! -e "$box/tmp/$job.ds"
  expect "each rank has a file for its output" test "$(find "$box/each" -name '*_rank[01].log' | wc -l)" = 2
}
claim "DeepSpeed's flags for the processes of one host" flags_of_processes

a_stranger_at_the_ports() {
  configure 60 0
  expect "one rank trains undisturbed" succeeds train alone
  sed -i 's/"max_steps": 60/"max_steps": 100000/' "$box/tiny.json"
  start run --set gradient_reduction=each
  # Every port on which a process of the job listens gets connections that begin as gloo's do, with a number.
  python3 - "$job" <<'STRANGER' || exit 1
import os, re, socket, struct, sys, time
def children(pid):
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in open(f"/proc/{pid}/task/{task}/children").read().split():
            yield child
            yield from children(child)
job = [sys.argv[1], *children(sys.argv[1])]
inodes = set()
for pid in job:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
        if found:
            inodes.add(found[1])
ports = set()
for row in list(open("/proc/net/tcp"))[1:]:
    fields = row.split()
    if fields[3] == "0A" and fields[9] in inodes:
        address, port = fields[1].split(":")
        ports.add((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
assert len(ports) >= 5, ports  # the head, and each of four ranks
assert all(address != "0.0.0.0" for address, _ in ports), ports
held = []
for address, port in ports:
    for number in range(16):
        s = socket.create_connection((address, port), 5)
        s.sendall(struct.pack("<q", number) + bytes(200))
        held.append(s)
time.sleep(1)
STRANGER
  expect "it goes on" until_true has_steps 60
  kill -TERM "$job"
  expect "the job ends" until_true ended
  wait "$job"
  code=$?
  expect "it went on until it was stopped: exit code 75, not $code" test "$code" = 75
  expect "a stranger at the head was told" says "it does not know the secret of this job" "$box/run.err"
  head -n 60 "$box/run/metrics.jsonl" | grep -o '"loss":[^,]*' >"$box/with"
  grep -o '"loss":[^,]*' "$box/alone/metrics.jsonl" >"$box/without"
  expect "the losses are the same" cmp "$box/with" "$box/without"
}
has_steps() { [[ $(wc -l <"$box/run/metrics.jsonl") -gt $1 ]]; }
claim "strangers at the ports of a job do not change its numbers" a_stranger_at_the_ports

mistakes_are_reported() {
  configure
  printf '127.0.0.1 slots=1\nno-such-host.invalid slots=1\n' >"$box/hosts"
  train bad -H "$box/hosts"
  code=$?
  expect "exit code 2, not $code" test "$code" = 2
  expect "the host without an address is named" says "no-such-host.invalid" "$box/bad.err"
  # Every host finds out by itself that there is no data.
  printf '127.0.0.1 slots=1\n127.0.0.2 slots=1\n' >"$box/hosts"
  train alike -H "$box/hosts" --set "data.train=$box/none.txt"
  code=$?
  expect "data that is missing on all hosts: exit code 3, not $code" test "$code" = 3
  expect "is reported once" test "$(grep -c 'error: ' "$box/alike.err")" = 1
  expect "with both hosts" says "hosts 127.0.0.1, 127.0.0.2: " "$box/alike.err"
  expect "and a fix in the last line" grep -q '^ *fix: ' <(tail -1 "$box/alike.err")
  expect "a launcher that is not installed is named" test "$(PATH=/nowhere "$tessera" train "$box/tiny.json" \
    --set "run.dir=$box/none" -H "$box/hosts" --launcher slurm --master_addr 127.0.0.1 2>&1 | grep -c 'cannot run srun')" = 1
  expect "an agent without a job says so" test "$("$tessera" agent </dev/null 2>&1 | grep -c 'standard input')" = 1
}
claim "mistakes are reported" mistakes_are_reported

other_text_of_the_same_size() {
  configure
  mkdir "$box/a" "$box/b"
  head -c 20000 examples/data/shakespeare.txt >"$box/a/text.txt"
  tr e a <"$box/a/text.txt" >"$box/b/text.txt"
  local common=("$box/tiny.json" --set data.train=text.txt --set "run.dir=$box/run" --nnodes 2 -n 1 --master_addr 127.0.0.1
    --master_port $((20000 + RANDOM % 10000)))
  (cd "$box/b" && "$tessera" train "${common[@]}" --node_rank 1 >"$box/b.out" 2>"$box/b.err") &
  other=$!
  (cd "$box/a" && "$tessera" train "${common[@]}" --node_rank 0 >"$box/a.out" 2>"$box/a.err")
  code=$?
  wait "$other"
  expect "the first host refuses: exit code 2, not $code" test "$code" = 2
  expect "it names what differs, and where" says "data.train differs: text.txt has other contents on host node-1 than on host node-0" "$box/a.err"
  expect "so does the second one" says "data.train differs" "$box/b.err"
  expect "it is reported once" test "$(grep -c 'data.train differs' "$box/a.err")" = 1
}
claim "hosts with another text of the same size are refused" other_text_of_the_same_size

in_namespaces() {
  configure
  trap remove_namespaces EXIT
  two_namespaces hosts_test 10.213.7
  stand_in_for_ssh "$box/bin"
  printf 'ip netns exec %s' "$b" >"$box/bin/within-10.213.7.2"
  printf '10.213.7.1 slots=2\n10.213.7.2 slots=2\n' >"$box/hosts"
  expect "it trains" succeeds ip netns exec "$a" "$tessera" train "$box/tiny.json" --set "run.dir=$box/two" -H "$box/hosts"
  expect "one rank trains" succeeds one_rank
  expect "the bits are the same" same two

  sed -i 's/"max_steps": 6/"max_steps": 100000/' "$box/tiny.json"
  setsid ip netns exec "$a" "$tessera" train "$box/tiny.json" --set "run.dir=$box/cut" -H "$box/hosts" >"$box/cut.out" 2>"$box/cut.err" &
  job=$!
  expect "it begins" until_true test -s "$box/cut/metrics.jsonl"
  ip -n "$a" link set "$card_a" down
  begin=$(date +%s)
  expect "the job ends" until_true ended
  expect "within 14 s on a busy machine" test $(($(date +%s) - begin)) -lt 14
  expect "the host is named" says "host 10.213.7.2 was lost" "$box/cut.err"
  "$tessera" doctor "$box/cut" >"$box/doctor"
  expect "the doctor names it, too" says "ranks 0, 1 stopped because: host 10.213.7.2 was lost (ranks 2 to 3)" "$box/doctor"
  expect "it has a line for each rank of this side" test "$(grep -cE '^rank [01] of host 10.213.7.1: step [0-9]+, its operation' "$box/doctor")" = 2
  # The ranks of the other side may be killed before they have written.
  expect "and for each of the other one" test "$(grep -cE '^rank [23] (of host 10.213.7.2: step|left no record)' "$box/doctor")" = 2
  expect "no process is left" until_true none_left
}
if namespaces_allowed; then
  claim "two network namespaces train, and a cut between them is reported" in_namespaces
else
  echo "skipped  network namespaces may not be made here"
fi

claims_done
