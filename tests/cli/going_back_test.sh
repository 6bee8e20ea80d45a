#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# Runs that go on from elsewhere than their newest checkpoint, or with other settings.   usage: going_back_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: going_back_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

configure() {
  head -c 3000 examples/data/shakespeare.txt >"$box/text.txt"
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2},
  "data": {"train": "$box/text.txt", "sequence_length": 16},
  "train_batch_size": 4, "optimizer": {"params": {"lr": 1e-3}},
  "trainer": {"max_steps": 12}, "run": {"dir": "$box/run", "threads_per_rank": 1},
  "checkpoint": {"every": 3, "keep": 9}
}
EOF
}
# train ARGUMENTS...: its words go to $box/out and $box/err, its code to $code.
train() {
  timeout 120 "$tessera" train "$box/tiny.json" -n 1 "$@" >"$box/out" 2>"$box/err"
  code=$?
}
steps_of() { grep -o '"step":[0-9]*,"epoch"' "$1/metrics.jsonl" | grep -o '[0-9]*' | tr '\n' ' '; }

the_way_that_was_left_is_moved_aside() {
  configure
  train
  train --resume "$box/run/checkpoints/step-00000006" --set optimizer.lr=1e-4 --set trainer.max_steps=9
  expect "exit code 0, not $code" test "$code" = 0
  expect "it says so" says "later checkpoints and a copy of metrics.jsonl were moved to" "$box/out"
  expect "the later ones are there" test -d "$box/run.old-1/checkpoints/step-00000012"
  expect "so is what was measured" test "$(steps_of "$box/run.old-1")" = "1 2 3 4 5 6 7 8 9 10 11 12 "
  expect "the newest is the new way's" test ! -e "$box/run/checkpoints/step-00000012"
  expect "latest" says "step-00000009" "$box/run/checkpoints/latest"
  train --set optimizer.lr=1e-4
  expect "it goes on from there" says "start       from step 9" "$box/out"
  expect "every step once, not $(steps_of "$box/run")" test "$(steps_of "$box/run")" = "1 2 3 4 5 6 7 8 9 10 11 12 "
}

another_run_s_contents_are_moved_aside() {
  configure
  train
  train --set "run.dir=$box/other" --set trainer.max_steps=3
  train --resume "$box/run/checkpoints/step-00000006" --set "run.dir=$box/other" --set trainer.max_steps=9
  expect "exit code 0, not $code" test "$code" = 0
  expect "it says so" says "the old contents were moved to $box/other.old-1" "$box/out"
  expect "steps 7 to 9, not $(steps_of "$box/other")" test "$(steps_of "$box/other")" = "7 8 9 "
}

an_epoch_is_an_epoch_with_another_batch() {
  configure
  sed -i 's/"max_steps": 12/"epochs": 2/; s/"every": 3/"every": 20/' "$box/tiny.json"
  # 186 windows: 46 steps of 4 an epoch.
  train --set checkpoint.final=false
  expect "92 steps of 4" says "step 92/92" "$box/out"
  rm -r "$box"/run/checkpoints/step-000000[468]*
  train --set train_batch_size=8
  expect "exit code 0, not $code" test "$code" = 0
  # 20 steps of 4, 13 of 8 for the rest of the epoch, 23 of 8.
  expect "as many as are left" says "step 56/56" "$box/out"
  train --set train_batch_size=2
  expect "nothing is left" says "is finished: step 56 of 56" "$box/out"
}

state_that_was_not_kept_starts_anew() {
  configure
  train --set 'optimizer={"type": "SGD", "params": {"lr": 0.01}}'
  train --set 'optimizer={"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}}' --set trainer.max_steps=15
  expect "exit code 0, not $code" test "$code" = 0
  expect "it says so" says "momentum_buffer of" "$box/out"
  configure
  rm -r "$box/run"
  train --set 'optimizer.groups=[{"pattern": "wte", "frozen": true}]'
  train --set trainer.max_steps=15
  expect "exit code 0, not $code" test "$code" = 0
  expect "of the parameter alone" says "exp_avg, exp_avg_sq of wte.weight starts anew" "$box/out"
}

a_step_without_a_loss_counts() {
  configure
  train --set 'optimizer={"type": "SGD", "params": {"lr": 1e38}}' --set trainer.on_nonfinite=skip
  "$tessera" report "$box/run" >"$box/report"
  expect "all steps" grep -Eq '^ *steps +12$' "$box/report"
  expect "those without a loss" grep -Eq 'skipped' "$box/report"
  expect "no sign of what is no number" test -z "$(grep -e '-nan' "$box/out")"
}

a_configuration_in_place_of_a_file_has_a_folder_to_run_in() {
  configure
  cd "$box" || exit 1
  sed -i 's|"dir": "[^"]*", ||' tiny.json
  timeout 120 "$tessera" train "$(base64 -w0 tiny.json)" -n 1 >out 2>err
  expect "exit code 0" test $? = 0
  expect "the folder" test -d runs/run/checkpoints/step-00000012
}

claim "going back moves the way that was left aside" the_way_that_was_left_is_moved_aside
claim "a run folder holds one training" another_run_s_contents_are_moved_aside
claim "epochs are counted in samples when the batch changes" an_epoch_is_an_epoch_with_another_batch
claim "what an optimizer did not keep starts anew" state_that_was_not_kept_starts_anew
claim "a step whose loss is no number is a step" a_step_without_a_loss_counts
claim "a configuration in base64 has a run folder" a_configuration_in_place_of_a_file_has_a_folder_to_run_in
claims_done
