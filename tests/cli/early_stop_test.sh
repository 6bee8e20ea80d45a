#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 120
# A run that ends early reports it and is finished; testing and generation use its best checkpoint.   usage: early_stop_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: early_stop_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# A high loss counts as good, so that the first evaluation stays the best one.
configuration() {
  head -c 2000 examples/data/shakespeare.txt >"$box/test.txt"
  cat <<JSON
{
  "model": {"num_layers": 1, "hidden_size": 32, "num_heads": 2},
  "data": {"train": "examples/data/shakespeare.txt", "test": "$box/test.txt", "sequence_length": 16,
           "validation_fraction": 0.1},
  "train_batch_size": 8, "optimizer": {"params": {"lr": 1e-2}}, "trainer": {"max_steps": 100},
  "eval": {"every": 3, "batches": 2, "patience": 2, "best": {"metric": "loss", "mode": "max"}},
  "checkpoint": {"keep": 1}, "run": {"dir": "$box/run", "threads_per_rank": 1}
}
JSON
}
train() { timeout 60 "$tessera" train "$box/c.json" "$@" >"$box/out" 2>"$box/err"; }

an_early_stop_is_a_finished_run() {
  configuration >"$box/c.json"
  train -n 2
  expect "exit code 0, not $?" test $? = 0
  expect "the first table" says "stops after 2 evaluations without a gain of loss" "$box/out"
  expect "the reason" says "stopped early at step 9: 2 evaluations without a gain of loss" "$box/out"
  expect "the test set" says "test with the best weights (step 3)" "$box/out"
  expect "the status" says '"state": "finished"' "$box/run/status.json"
  expect "the step" says '"step": 9' "$box/run/status.json"
  expect "the reason in the status" says "stopped early at step 9" "$box/run/status.json"
  train -n 1
  expect "again: exit code 0, not $?" test $? = 0
  expect "again: nothing to do" says "is finished: stopped early at step 9" "$box/out"
  train -n 1 --set eval.patience=3
  expect "more patience: exit code 0, not $?" test $? = 0
  expect "more patience" says "stopped early at step 12: 3 evaluations" "$box/out"
}

the_best_checkpoint_has_a_name() {
  configuration >"$box/c.json"
  train -n 1
  "$tessera" eval "$box/run/checkpoints/best" --data "$box/test.txt" --threads 1 --json >"$box/eval" 2>"$box/err" || cat "$box/err"
  "$tessera" eval "$box/run" --data "$box/test.txt" --threads 1 --json >"$box/eval-run" 2>"$box/err" || cat "$box/err"
  expect "the run means its best checkpoint" cmp "$box/eval" "$box/eval-run"
  expect "which is said" says "checkpoints/step-00000003: the best checkpoint, because the training stopped early" "$box/err"
  "$tessera" eval "$box/run" --last --data "$box/test.txt" --threads 1 --json -q >"$box/eval-last" 2>"$box/err" || cat "$box/err"
  expect "unless the last one is asked for" bash -c "! cmp -s '$box/eval' '$box/eval-last'"
  expect "of which -q says nothing" test ! -s "$box/err"
  expect "the loss of the test set" python3 - "$box/eval" "$box/run/metrics.jsonl" <<'PY'
import json, sys
measured = json.load(open(sys.argv[1]))
tested = [line for line in map(json.loads, open(sys.argv[2])) if "test_loss" in line]
assert len(tested) == 1 and tested[0]["step"] == 3, tested
assert measured["tokens"] == tested[0]["test_tokens"]
assert abs(measured["loss"] - tested[0]["test_loss"]) < 1e-6 * measured["loss"], (measured, tested)
PY
}

a_metric_that_is_missing_is_refused_with_those_that_there_are() {
  configuration | sed 's/"metric": "loss"/"metric": "f1"/' >"$box/c.json"
  train -n 2
  expect "exit code 2, not $?" test $? = 2
  expect "the metric" says 'have no metric "f1"' "$box/err"
}

claim "an early stop is a finished run, which continues with more patience" an_early_stop_is_a_finished_run
claim "the best checkpoint has a name" the_best_checkpoint_has_a_name
# An average that never moves keeps the initial weights.
an_average_is_written_in_place_of_the_weights() {
  configuration >"$box/c.json"
  train -n 2 --set trainer.max_steps=3 --set trainer.ema.decay=1 --set eval.weights=\"ema\"
  expect "exit code 0, not $?" test $? = 0
  "$tessera" convert "$box/run" "$box/average.bin" --ema >"$box/out" 2>"$box/err" || { cat "$box/err" && exit 1; }
  "$tessera" convert "$box/run" "$box/weights.bin" >"$box/out" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "another model" test "$(md5sum <"$box/average.bin")" != "$(md5sum <"$box/weights.bin")"
  mkdir "$box/folder" && "$tessera" convert "$box/run" "$box/folder/average" --ema >"$box/out" 2>"$box/err" || { cat "$box/err" && exit 1; }
  "$tessera" eval "$box/folder/average" --data "$box/test.txt" --threads 1 --json >"$box/eval" 2>"$box/err" || cat "$box/err"
  expect "the loss of the average" python3 - "$box/eval" "$box/run/metrics.jsonl" <<'PY'
import json, sys
measured = json.load(open(sys.argv[1]))["loss"]
lines = [json.loads(line) for line in open(sys.argv[2])]
tested = [line["test_loss"] for line in lines if "test_loss" in line]
trained = [line["loss"] for line in lines if "loss" in line]
assert abs(measured - tested[0]) < 1e-6 * measured, (measured, tested)
assert measured > trained[-1] + 0.1, (measured, trained)
PY
  train -n 1 --resume never --set trainer.max_steps=3
  "$tessera" convert "$box/run" "$box/none.bin" --ema >"$box/out" 2>"$box/err"
  expect "exit code 2, not $?" test $? = 2
  expect "why" says "has no average of the weights" "$box/err"
}
claim "an average is written in place of the weights" an_average_is_written_in_place_of_the_weights
claim "a missing metric is refused with those that there are" a_metric_that_is_missing_is_refused_with_those_that_there_are
claims_done
