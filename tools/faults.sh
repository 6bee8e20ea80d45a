#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A campaign of faults: N trainings, each with one fault at a random moment. Each must end with the bits of an undisturbed
# training, or with an error that names the culprit; nothing may be left behind.   usage: tools/faults.sh PROGRAM N [SEED [KIND...]]
# Faults that need a privilege which is missing here (network namespaces, tmpfs) are left out, and the table says so.
# shellcheck disable=SC2317  # the faults are called by their names
set -uo pipefail
program=$(realpath "${1:?usage: tools/faults.sh PROGRAM N [SEED [KIND...]]}")
runs=${2:?usage: tools/faults.sh PROGRAM N [SEED [KIND...]]}
seed=${3:-$(($(date +%s) % 30000))}
only=("${@:4}")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
source tests/support/claims.sh
source tests/support/ssh_stand_in.sh
source tests/support/namespaces.sh
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
box=$(mktemp -d)
steps=20

clean_up() {
  umount "$box/disk" 2>/dev/null
  remove_namespaces
  rm -rf -- "$box"
}
trap clean_up EXIT

cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
  "trainer": {"max_steps": $steps}, "run": {"threads_per_rank": 1, "restarts": 3}, "checkpoint": {"every": 5}
}
JSON
printf 'node-a slots=1\nnode-b slots=1\nnode-c slots=1\n' >"$box/hosts"
printf '10.213.9.1 slots=1\n10.213.9.2 slots=1\n' >"$box/two-hosts"
mkdir -p "$TESSERA_CACHE" "$box/bin" "$box/disk" "$box/swap"
stand_in_for_ssh "$box/bin"
printf 'ip netns exec %s' "$b" >"$box/bin/within-10.213.9.2"

"$program" train "$box/tiny.json" --set "run.dir=$box/reference" >"$box/out" 2>"$box/err" || { cat "$box/err"; exit 1; }

# A fault that is named more often happens more often. Silence takes ten seconds to notice.
kinds=(rank-killed rank-killed rank-killed rank-killed agent-killed agent-killed first-agent-killed host-killed host-killed
  host-killed job-killed job-killed rank-stopped host-stopped)
skipped=()
of_links=(partition slow-link slow-link link-delay link-loss link-loss link-reset link-reset)
if namespaces_allowed && two_namespaces_and_a_proxy faults 10.213.9 "$box" "$seed"; then
  kinds+=("${of_links[@]}")
else
  skipped+=("${of_links[@]}")
fi
if mount -t tmpfs -o size=3M faults "$box/disk" 2>/dev/null; then
  umount "$box/disk"
  kinds+=(disk-full disk-full)
else
  skipped+=(disk-full)
fi

if ((${#only[@]})); then
  for kind in "${only[@]}"; do
    [[ " ${kinds[*]} " == *" $kind "* ]] || { echo "faults: no fault $kind here; there are: ${kinds[*]}" >&2; exit 2; }
  done
  kinds=("${only[@]}")
fi

run=$box/run
names=abc
# A pause without a process of its own: a campaign waits for most of its time.
exec {never}<> <(:)
pause() { read -rt "$1" -u "$never"; }
start() {
  setsid "$@" --set "run.dir=$run" >"$box/out" 2>"$box/err" &
  job=$!
}
stopping=0
alive() { ((!stopping)) && kill -0 "$job" 2>/dev/null; }
reached() {
  local lines=()
  mapfile -t lines 2>/dev/null <"$run/metrics.jsonl" || return 1
  ((${#lines[@]})) && [[ ${lines[-1]} =~ \"step\":([0-9]+) ]] && ((BASH_REMATCH[1] >= $1))
}
# The moment: a random step, and some milliseconds after it.
wait_for_a_moment() {
  local step=$((RANDOM % (steps - 10)))
  while alive && ! reached "$step"; do pause 0.02; done
  pause "0.0$((RANDOM % 30 + 10))"
  moment="after step $step"
}
child() { pgrep -P "$1" | shuf -n 1 --random-source=<(yes "$RANDOM"); }
# Trainings differ in their ZeRO stage, and in what rests on a disk, which does not change their bits. Half of those on three hosts also keep copies in
# memory, and some of these save nothing before the end.
choose_settings() {
  local stage=$((RANDOM % 4)) zero=zero_optimization rest=activation_checkpointing
  local settings=(--set "$zero.stage=$stage")
  if ((stage > 0 && RANDOM % 2)); then
    settings+=(--set "$zero.offload_optimizer.device=nvme" --set "$zero.offload_optimizer.nvme_path=$box/swap")
    if ((RANDOM % 2)); then settings+=(--set "$zero.offload_optimizer.gradients=true" --set aio.block_size=4096); fi
    if ((stage == 3 && RANDOM % 2)); then
      settings+=(--set "$zero.offload_param.device=nvme" --set "$zero.offload_param.nvme_path=$box/swap"
        --set "$zero.stage3_param_persistence_threshold=0" --set "$rest.granularity=full"
        --set "$rest.offload.device=nvme" --set "$rest.offload.nvme_path=$box/swap")
    fi
  fi
  one_host=("$program" train "$box/tiny.json" -n 3 "${settings[@]}")
  three_hosts=("$program" train "$box/tiny.json" -H "$box/hosts" --master_addr 127.0.0.1 --elastic_training "${settings[@]}")
  two_spaces=(ip netns exec "$a" "$program" train "$box/tiny.json" -H "$box/two-hosts" --elastic_training "${settings[@]}")
  ((RANDOM % 2)) || return 0
  three_hosts+=(--set checkpoint.peer_copies=1 --set "checkpoint.peer_every=$((RANDOM % 5 + 1))")
  ((RANDOM % 2)) || three_hosts+=(--set checkpoint.every=0)
}

# Each fault sets `culprit`, what an error has to say.
rank-killed() {
  if ((RANDOM % 2)); then start "${one_host[@]}"; else start "${three_hosts[@]}"; fi
  wait_for_a_moment
  local of=$job
  [[ -z $(agent 1) ]] || of=$(agent $((RANDOM % 3 + 1)))
  kill -9 "$(child "$of")" 2>/dev/null
  culprit='rank [0-9]+ was lost'
}
agent() { pgrep -P "$job" -f ' agent$' | sed -n "$1p"; }
copy_server() { pgrep -P "$job" -f ' copy-server$' | sed -n "$1p"; }
agent-killed() {
  start "${three_hosts[@]}"
  wait_for_a_moment
  ((RANDOM % 2)) || touch "$box/bin/down-node-b"
  kill -9 "$(agent 2)" 2>/dev/null
  culprit='host node-b|agent of host node-b'
}
first-agent-killed() {
  start "${three_hosts[@]}"
  wait_for_a_moment
  ((RANDOM % 2)) || touch "$box/bin/down-node-a"
  kill -9 "$(agent 1)" 2>/dev/null
  culprit='host node-a|agent of host node-a'
}
host-killed() {
  start "${three_hosts[@]}"
  wait_for_a_moment
  local number=$((RANDOM % 3 + 1)) server
  local name=node-${names:number-1:1}
  ((RANDOM % 2)) || touch "$box/bin/down-$name"
  server=$(copy_server "$number")
  # shellcheck disable=SC2086
  kill -9 "$(agent "$number")" $server 2>/dev/null
  culprit="host $name|agent of host $name"
}
job-killed() {
  if ((RANDOM % 2)); then start "${one_host[@]}"; else start "${three_hosts[@]}"; fi
  wait_for_a_moment
  kill -9 "$job" 2>/dev/null
  wait "$job" 2>/dev/null
  start "${three_hosts[@]}"
  culprit='no error is expected'
}
rank-stopped() {
  start "${one_host[@]}"
  wait_for_a_moment
  kill -STOP "$(child "$job")" 2>/dev/null
  culprit='rank [0-9]+'
}
host-stopped() {
  start "${three_hosts[@]}"
  wait_for_a_moment
  local of
  of=$(agent 2)
  # shellcheck disable=SC2046
  [[ -z $of ]] || kill -STOP "$of" $(pgrep -P "$of") 2>/dev/null
  culprit='host node-b|rank 1'
}
partition() {
  start "${two_spaces[@]}"
  wait_for_a_moment
  link cut
  touch "$box/bin/down-10.213.9.2"
  culprit='host 10.213.9.2'
}
slow-link() {
  start "${two_spaces[@]}"
  wait_for_a_moment
  tc -n "$a" qdisc add dev "$card_a" root tbf rate "$((RANDOM % 40 + 8))mbit" burst 32kb latency 50ms
  culprit='no error is expected'
}
link-delay() {
  start "${two_spaces[@]}"
  wait_for_a_moment
  link delay "$((RANDOM % 10 + 1))"
  culprit='no error is expected'
}
# Lost frames are sent again after 200 ms at the earliest. From the middle on, so that a run takes seconds.
link-loss() {
  start "${two_spaces[@]}"
  while alive && ! reached $((steps / 2)); do pause 0.02; done
  moment="after step $((steps / 2))"
  link loss "0.0$((RANDOM % 3 + 1))"
  culprit='no error is expected'
}
# Resets a connection at a segment of any length, or at a long one, which is a part of a gradient.
link-reset() {
  start "${two_spaces[@]}"
  wait_for_a_moment
  link reset "$((RANDOM % 2 * 1000 + 1))"
  culprit='rank [01] of host [01] cannot be reached|host 10.213.9.[12]'
}
disk-full() {
  mount -t tmpfs -o "size=$((RANDOM % 3 + 2))M" faults "$box/disk"
  run=$box/disk/run
  if ((RANDOM % 2)); then start "${one_host[@]}"; else start "${three_hosts[@]}"; fi
  wait_for_a_moment
  head -c 4M /dev/zero >"$box/disk/filler" 2>/dev/null
  culprit="$run|No space left"
}
undo() {
  rm -f "$box"/bin/down-*
  if [[ $1 == partition ]]; then link join; fi
  if [[ $1 == slow-link ]]; then tc -n "$a" qdisc del dev "$card_a" root 2>/dev/null; fi
  if [[ $1 == link-* ]]; then printf '%s\n' "delay 0" "loss 0" "reset 0" 1<>"$link_pipe"; fi
  if [[ $1 == disk-full ]]; then umount "$box/disk"; fi
  rm -rf "${box:?}/run"
  run=$box/run
}
none_left() {
  local i
  for ((i = 0; i < 300; ++i)); do
    if ! pgrep -f "$box/tiny.json" >/dev/null && none_of_its_hosts "$box/bin"; then return 0; fi
    pause 0.05
  done
  return 1
}

declare -A count equal named failed
bad=0
began=$EPOCHSECONDS
show_table() {
  local kind
  printf '\n%d runs, seed %s, %d s\n\n' $((i - 1)) "$seed" $((EPOCHSECONDS - began))
  printf '| fault | runs | equal bits | an error that names it | neither |\n|---|---|---|---|---|\n'
  for kind in $(printf '%s\n' "${!count[@]}" | sort); do
    printf '| %s | %d | %d | %d | %d |\n' "$kind" "${count[$kind]}" "${equal[$kind]:-0}" "${named[$kind]:-0}" "${failed[$kind]:-0}"
  done
  ((${#skipped[@]} == 0)) || printf '\nskipped here: %s\n' "${skipped[*]}"
}
# A campaign that is stopped tells what it has found so far. The trap may run within a pause, where no process can be waited for.
trap 'stopping=1; bad=1' TERM INT
for ((i = 1; i <= runs; ++i)); do
  RANDOM=$((seed + i))
  kind=${kinds[RANDOM % ${#kinds[@]}]}
  choose_settings
  "$kind"
  for ((tick = 0; tick < 6000; ++tick)); do
    alive || break
    pause 0.02
  done
  if ((stopping)); then
    kill -9 "$job" 2>/dev/null
    break
  fi
  why=
  if alive; then
    why="it does not end"
    kill -9 "$job"
  fi
  wait "$job" 2>/dev/null
  code=$?
  if [[ -n $why ]]; then
    :
  elif ((code == 0)); then
    "$program" compare "$box/reference" "$run" >"$box/compared" 2>&1 || why="other losses: $(head -3 "$box/compared")"
    [[ -n $why ]] || equal[$kind]=$((${equal[$kind]:-0} + 1))
  elif grep -qE "$culprit" "$box/err"; then
    named[$kind]=$((${named[$kind]:-0} + 1))
  else
    why="exit code $code, and the error does not name it"
  fi
  none_left || why+=" processes are left"
  [[ -z $(ls -A "$box/swap") ]] || why+=" files are left in the folder of what rests on a disk"
  count[$kind]=$((${count[$kind]:-0} + 1))
  if [[ -n $why ]]; then
    failed[$kind]=$((${failed[$kind]:-0} + 1))
    bad=1
    printf 'FAILED run %s of seed %s (%s, %s): %s\n' "$i" "$seed" "$kind" "$moment" "$why"
    sed 's/^/        /' "$box/err" | tail -20
  fi
  undo "$kind"
  [[ ! -t 2 ]] || printf '\r%d of %d runs, %d min left ' "$i" "$runs" $(((runs - i) * (EPOCHSECONDS - began) / i / 60)) >&2
done

show_table
exit "$bad"
