#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# Resumes from a checkpoint other than the newest, or with changed settings.   usage: resume_changes_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: resume_changes_test.sh PROGRAM}
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
# train ARGUMENTS...: trains; writes the output to $box/out and $box/err, and the exit code to $code.
train() {
  timeout 120 "$tessera" train "$box/tiny.json" -n 1 "$@" >"$box/out" 2>"$box/err"
  code=$?
}
steps_of() { grep -o '"step":[0-9]*,"epoch"' "$1/metrics.jsonl" | grep -o '[0-9]*' | tr '\n' ' '; }

later_checkpoints_are_moved_aside() {
  configure
  train
  train --resume "$box/run/checkpoints/step-00000006" --set optimizer.lr=1e-4 --set trainer.max_steps=9
  expect "exit code 0, not $code" test "$code" = 0
  expect "the move is reported" says "later checkpoints and a copy of metrics.jsonl were moved to" "$box/out"
  expect "the later checkpoints were moved" test -d "$box/run.old-1/checkpoints/step-00000012"
  expect "a copy of the metrics was moved" test "$(steps_of "$box/run.old-1")" = "1 2 3 4 5 6 7 8 9 10 11 12 "
  expect "the later checkpoint is gone from the run folder" test ! -e "$box/run/checkpoints/step-00000012"
  expect "latest names the newest checkpoint" says "step-00000009" "$box/run/checkpoints/latest"
  train --set optimizer.lr=1e-4
  expect "it resumes from there" says "start       from step 9" "$box/out"
  expect "every step once, not $(steps_of "$box/run")" test "$(steps_of "$box/run")" = "1 2 3 4 5 6 7 8 9 10 11 12 "
}

contents_of_another_run_are_moved_aside() {
  configure
  train
  train --set "run.dir=$box/other" --set trainer.max_steps=3
  train --resume "$box/run/checkpoints/step-00000006" --set "run.dir=$box/other" --set trainer.max_steps=9
  expect "exit code 0, not $code" test "$code" = 0
  expect "the move is reported" says "the old contents were moved to $box/other.old-1" "$box/out"
  expect "steps 7 to 9, not $(steps_of "$box/other")" test "$(steps_of "$box/other")" = "7 8 9 "
}

epochs_are_counted_in_samples() {
  configure
  sed -i 's/"max_steps": 12/"epochs": 2/; s/"every": 3/"every": 20/' "$box/tiny.json"
  # 186 windows: 46 steps of batch size 4 per epoch.
  train --set checkpoint.final=false
  expect "92 steps of batch size 4" says "step 92/92" "$box/out"
  rm -r "$box"/run/checkpoints/step-000000[468]*
  train --set train_batch_size=8
  expect "exit code 0, not $code" test "$code" = 0
  # 20 steps of batch size 4, 13 of 8 for the rest of the epoch, 23 of 8.
  expect "the remaining steps are trained" says "step 56/56" "$box/out"
  train --set train_batch_size=2
  expect "no step remains" says "is finished: step 56 of 56" "$box/out"
}

missing_optimizer_state_is_initialized() {
  configure
  train --set 'optimizer={"type": "SGD", "params": {"lr": 0.01}}'
  train --set 'optimizer={"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}}' --set trainer.max_steps=15
  expect "exit code 0, not $code" test "$code" = 0
  expect "the initialization is reported" says "momentum_buffer of" "$box/out"
  configure
  rm -r "$box/run"
  train --set 'optimizer.groups=[{"pattern": "wte", "frozen": true}]'
  train --set trainer.max_steps=15
  expect "exit code 0, not $code" test "$code" = 0
  expect "only for that parameter" says "exp_avg, exp_avg_sq of wte.weight starts from zero" "$box/out"
}

skipped_steps_are_counted() {
  configure
  train --set 'optimizer={"type": "SGD", "params": {"lr": 1e38}}' --set trainer.on_nonfinite=skip
  "$tessera" report "$box/run" >"$box/report"
  expect "the report counts all steps" grep -Eq '^ *steps +12$' "$box/report"
  expect "the report counts skipped steps" grep -Eq 'skipped' "$box/report"
  expect "NaN is printed without a sign" test -z "$(grep -e '-nan' "$box/out")"
}

a_base64_configuration_has_a_run_folder() {
  configure
  cd "$box" || exit 1
  sed -i 's|"dir": "[^"]*", ||' tiny.json
  timeout 120 "$tessera" train "$(base64 -w0 tiny.json)" -n 1 >out 2>err
  expect "exit code 0" test $? = 0
  expect "the run folder exists" test -d runs/run/checkpoints/step-00000012
}

claim "resuming from an older checkpoint moves later ones aside" later_checkpoints_are_moved_aside
claim "a resume into the folder of another run moves its contents aside" contents_of_another_run_are_moved_aside
rate_of_step() { grep "\"step\":$1,\"epoch\"" "$box/run/metrics.jsonl" | tail -1 | grep -o '"lr":[^,}]*'; }

a_schedule_restarts_once() {
  configure
  sed -i 's/"optimizer"/"scheduler": {"type": "linear", "params": {"num_warmup_steps": 0}}, "optimizer"/' "$box/tiny.json"
  train
  rm -r "$box/run/checkpoints/step-00000012"
  train --set trainer.max_steps=24
  expect "the rise is a warning that offers both" says 'scheduler.on_resume "keep"' "$box/err"
  rm -r "$box"/run/checkpoints/step-000000{12,15,18,21,24}
  train --set trainer.max_steps=24 --set scheduler.on_resume=restart
  expect "exit code 0, not $code" test "$code" = 0
  expect "no warning" test "$(grep -c rises "$box/err")" = 0
  expect "what happens is reported" says "was restarted after update 9 and has 15 steps" "$box/out"
  expect "the first rate again, not $(rate_of_step 10)" test "$(rate_of_step 10)" = '"lr":0.001'
  before=$(rate_of_step 20)
  rm -r "$box"/run/checkpoints/step-000000{18,21,24}
  train --set trainer.max_steps=24 --set scheduler.on_resume=restart
  expect "it does not begin once more: $before" test "$(rate_of_step 20)" = "$before"
}

claim "a schedule restarts once" a_schedule_restarts_once
claim "epochs are counted in samples when the batch size changes" epochs_are_counted_in_samples
claim "optimizer state missing in the checkpoint is initialized" missing_optimizer_state_is_initialized
claim "a step with a non-finite loss is counted" skipped_steps_are_counted
claim "a configuration given as base64 has a run folder" a_base64_configuration_has_a_run_folder
claims_done
