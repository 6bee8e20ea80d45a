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
  sed -i 's/"eval": {"every": 0}/"autotuning": {"enabled": true, "tuner_num_trials": 2, "start_profile_step": 2, "end_profile_step": 3}/' tiny.json
  timeout 250 "$tessera" train tiny.json -n 1 --autotuning run >out 2>err
  local code=$?
  expect "exit code 0, not $code: $(cat err)" test "$code" = 0
  for file in profile_model_info/model_info.json ds_config_optimal.json cmd_optimal.txt summary.txt; do
    expect "$file" test -s "autotuning_results/$file"
  done
  expect "experiments" test "$(ls autotuning_exps/*/exp.json | wc -l)" = 2
  expect "their metrics" grep -q throughput autotuning_exps/*/metrics.json
  expect "the training with the winner" grep -q '"step":12' run/metrics.jsonl
}

claim "a search finds, keeps what it found, and goes on" a_search_finds_keeps_and_goes_on
claim "a trial that fails is a line with its own error" a_failing_trial_is_a_line
claim "DeepSpeed's --autotuning run tunes and trains" deepspeeds_tuner
claims_done
