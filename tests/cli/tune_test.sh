#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# tessera tune and --autotuning with trials that are trainings.   usage: tune_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: tune_test.sh PROGRAM}



configure() {
  export TESSERA_CACHE=$box/cache
  mkdir -p "$TESSERA_CACHE"
  for i in $(seq 400); do echo "line $i of a text that nobody has to learn"; done >"$box/text.txt"
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4},
  "tokenizer": {"type": "byte"},
  "data": {"train": "$box/text.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
  "trainer": {"max_steps": 12}, "eval": {"every": 0},
  "run": {"dir": "$box/run", "threads_per_rank": 1}
}
JSON
  # The rates of a machine; what they are does not matter here.
  cat >"$TESSERA_CACHE/machine.json" <<JSON
{
  "title": "a test", "memory_bytes": 1e9, "cores": 2, "flops_per_s": {"fp32": 1e11, "bf16": 1e11},
  "efficiency": {"large_product": 0.5, "attention": 0.2}, "memory": {"bytes_per_s": 1e10},
  "in_host": {"bytes_per_s": 1e9}, "collectives": "own"
}
JSON
}

a_search_finds_keeps_and_goes_on() {
  configure
  cd "$box" || return
  timeout 200 "$tessera" tune tiny.json -n 1 --trials 2 --steps 2 >out 2>err
  local code=$?
  expect "exit code 0, not $code: $(cat err)" test "$code" = 0
  expect "what was tried" says "tried" out
  expect "what was not" says "not tried" out
  expect "the winner" says "best by throughput" out
  expect "two trials" test "$(grep -c '"outcome": "measured"' runs/tiny-tune/tuned.json)" = 2
  timeout 200 "$tessera" tune tiny.json -n 1 --trials 3 --steps 2 >out 2>err
  expect "the trials before" says "goes on after 2 trials" out
}

ctrl_c_keeps_what_is_known() {
  configure
  cd "$box" || return
  rm -rf runs
  setsid "$tessera" tune tiny.json -n 1 --steps 2 >out 2>err &
  local tuner=$!
  until_true grep -q '"outcome": "measured"' runs/tiny-tune/tuned.json
  kill -INT "$tuner"
  wait "$tuner"
  local code=$?
  expect "exit code 130, not $code: $(cat err)" test "$code" = 130
  local known
  known=$(grep -c '"outcome": "measured"' runs/tiny-tune/tuned.json)
  expect "what was measured is kept" test "$known" -ge 1
  expect "the table is printed" says "it was interrupted" out
  timeout 200 "$tessera" tune tiny.json -n 1 --trials "$((known + 1))" --steps 2 >out 2>err
  expect "the same command goes on" says "goes on after $known trials" out
}

reported_before_anything_starts() {
  configure
  cd "$box" || return
  sed 's/"eval": {"every": 0}/"autotuning": {"enabled": true, "arg_mappings": {"train_batch_size": "--no-such-flag"}}/' tiny.json >mapped.json
  sed 's/"eval": {"every": 0}/"autotuning": {"enabled": true, "start_profile_step": 5, "end_profile_step": 3}/' tiny.json >steps.json
  sed 's/"eval": {"every": 0}/"autotuning": {"enabled": true, "arg_mappings": {"train_micro_batch_size_per_gpu": "--gradient_accumulation_steps"}}/' tiny.json >other.json
  sed 's/"eval": {"every": 0}/"autotuning": {"enabled": true, "model_info": {"num_layers": 12}}/' tiny.json >model.json
  rm "$TESSERA_CACHE/machine.json"
  echo '{"title": "no rates", "memory_bytes": 1e9, "memory": {"bytes_per_s": 1e10}, "in_host": {"bytes_per_s": 1e9}}' >bad.json
  local what args text
  while IFS='|' read -r what args text; do
    rm -rf runs autotuning_results autotuning_exps
    # shellcheck disable=SC2086
    timeout 60 "$tessera" $args >out 2>err
    local code=$?
    expect "$what: exit code 2, not $code: $(cat err)" test "$code" = 2
    expect "$what is reported: $(cat err)" says "$text" err
    expect "$what: nothing is started" test ! -e runs -a ! -e autotuning_exps
    expect "$what: the machine is not measured" test ! -e "$TESSERA_CACHE/machine.json"
  done <<'TABLE'
a budget that is too small|tune tiny.json -n 1 --budget 1s|too small for one trial
a budget without a number|tune tiny.json -n 1 --budget soon|expected a time
an unknown metric|tune tiny.json -n 1 --metric speed|metric speed: unknown
a key that no search changes|tune tiny.json -n 1 --fix optimizer.type|a search does not change this key
fixed keys that contradict each other|tune tiny.json -n 1 --set zero_optimization.stage=3 --set parallel.pipeline.size=2|pipeline
a machine without a rate|plan tiny.json -n 2 --device bad.json|bench machine
a machine that nobody knows|plan tiny.json -n 2 --device h1000|h100
no trials|tune tiny.json -n 1 --trials 0|expected 1 to
another word than tune or run|train tiny.json -n 1 --autotuning try|expected tune or run
a mapping to an unknown flag|train mapped.json -n 1 --autotuning tune|no flag
a mapping to the flag of another key|train other.json -n 1 --autotuning tune|sets another key
a statement about another model|train model.json -n 1 --autotuning tune --dry-run|num_layers is 12, and the model has 2
steps that end before they begin|train steps.json -n 1 --autotuning tune|end_profile_step
TABLE
}

hosts_with_slots() {
  configure
  cd "$box" || return
  printf 'localhost slots=2\nother-host slots=1\n' >hosts
  timeout 60 "$tessera" tune tiny.json --hostfile hosts --dry-run --json >out 2>err
  local code=$?
  expect "exit code 0, not $code: $(cat err)" test "$code" = 0
  expect "the ranks of the host with the fewest slots: $(grep '"ranks"' out | sort | uniq -c)" \
    test "$(grep '"ranks"' out | sort -u | tr -d ' ,')" = '"ranks":1'
}

a_failing_trial_is_a_line() {
  configure
  cd "$box" || return
  rm text.txt
  timeout 200 "$tessera" tune tiny.json -n 1 --trials 1 --steps 2 >out 2>err
  local code=$?
  expect "exit code 9, not $code" test "$code" = 9
  expect "the error of the trial" grep -q 'failed: .*text.txt' out
}

deepspeeds_tuner() {
  configure
  cd "$box" || return
  sed -i 's/"eval": {"every": 0}/"autotuning": {"enabled": true, "tuner_num_trials": 2, "start_profile_step": 2, "end_profile_step": 3, "metric_path": "best\/metrics.json", "arg_mappings": {"train_micro_batch_size_per_gpu": "--per_device_train_batch_size"}}/' tiny.json
  timeout 250 "$tessera" train tiny.json -n 1 --autotuning run >out 2>err
  local code=$?
  expect "exit code 0, not $code: $(cat err)" test "$code" = 0
  for file in profile_model_info/model_info.json ds_config_optimal.json cmd_optimal.txt summary.txt; do
    expect "$file" test -s "autotuning_results/$file"
  done
  expect "experiments" test "$(ls autotuning_exps/*/exp.json | wc -l)" = 2
  expect "their metrics" grep -q throughput autotuning_exps/*/metrics.json
  expect "the metrics of the winner" grep -q throughput best/metrics.json
  expect "the mapped flag in a trial" grep -q -- '--per_device_train_batch_size [0-9]' autotuning_exps/*/cmd.txt
  expect "the mapped flag in the best command" grep -q -- '--per_device_train_batch_size [0-9]' autotuning_results/cmd_optimal.txt
  expect "the training with the winner" grep -q '"step":12' run/metrics.jsonl
}

claim "a search finds, keeps what it found, and goes on" a_search_finds_keeps_and_goes_on
claim "Ctrl-C keeps what is known, and the same command goes on" ctrl_c_keeps_what_is_known
claim "what cannot be tuned is reported before anything starts" reported_before_anything_starts
claim "without -n, the slots of the hosts give the ranks" hosts_with_slots
claim "a trial that fails is a line with its own error" a_failing_trial_is_a_line
claim "DeepSpeed's --autotuning run tunes and trains" deepspeeds_tuner
claims_done
