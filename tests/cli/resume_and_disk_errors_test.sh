#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Errors of resumes and of the disk: rejected resumes, damaged checkpoints, a full disk; and resolved configurations on
# other numbers of ranks.   usage: resume_and_disk_errors_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: resume_and_disk_errors_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

configure() {
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
  "trainer": {"max_steps": 6}, "run": {"dir": "$box/run", "threads_per_rank": 1},
  "checkpoint": {"every": 2}
}
EOF
}
# train ARGUMENTS...: trains; writes the output to $box/out and $box/err, and the exit code to $code.
train() {
  timeout 120 "$tessera" train "$box/tiny.json" "$@" >"$box/out" 2>"$box/err"
  code=$?
}
# refused CODE TEXT... -- ARGUMENTS...: a run and a dry run end with this exit code and all these texts, and change
# nothing.
refused() {
  local wanted=$1 before text texts=()
  shift
  while [[ $1 != -- ]]; do texts+=("$1"); shift; done
  shift
  before=$(fingerprint)
  for dry in "" --dry-run; do
    train "$@" ${dry:+"$dry"}
    expect "exit code $wanted${dry:+ of the dry run}, not $code: $(cat "$box/err")" test "$code" = "$wanted"
    for text in "${texts[@]}"; do expect "the message contains \"$text\"" says "$text" "$box/err"; done
    expect "the message has a fix" says "fix: " "$box/err"
    expect "the run folder is unchanged" test "$(fingerprint)" = "$before"
  done
}
# Prints checksums of the run folder's files except the lock, which names its last owner.
fingerprint() { (cd "$box/run" && find . -type f -not -name lock -print0 | sort -z | xargs -0 cksum); }
# flip FILE BACK: flips a bit of the byte BACK bytes before the end.
flip() {
  local at byte
  at=$(($(stat -c %s "$1") - $2))
  byte=$(od -An -tu1 -j "$at" -N 1 "$1")
  # shellcheck disable=SC2059  # the format is the byte
  printf "\\$(printf %o $((byte ^ 4)))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}
# Prints the older checkpoint that the fix of the last message suggests.
offered() { sed -nE 's/.*--resume ([^ ]+)$/\1/p' "$box/err" | head -1; }

another_run_is_refused() {
  configure
  train
  for change in model.num_layers=3 model.vocab_size=512 trainer.seed=5 data.sequence_length=8; do
    refused 2 "cannot go on from step 6" "${change%=*}: " "-> ${change#*=}" "--resume never" "model.from" -- \
      --set trainer.max_steps=8 --set "$change"
  done
}

other_data_is_refused() {
  configure
  train
  head -c 5000 examples/data/shakespeare.txt >"$box/other.txt"
  refused 2 "the training data is another" "another run.dir" -- \
    --set trainer.max_steps=8 --set "data.train=$box/other.txt"
}

other_evaluation_data_is_noted() {
  configure
  head -c 5000 examples/data/shakespeare.txt >"$box/first.txt"
  tail -c 5000 examples/data/shakespeare.txt >"$box/second.txt"
  train --set "data.validation=$box/first.txt"
  cp "$box/first.txt" "$box/moved.txt"
  train --set "data.validation=$box/moved.txt" --set trainer.max_steps=8
  expect "exit code 0, not $code" test "$code" = 0
  expect "a moved file is not noted" bash -c "! grep -q data.validation '$box/out'"
  train --set "data.validation=$box/second.txt" --set trainer.max_steps=10
  expect "exit code 0, not $code" test "$code" = 0
  expect "the change is noted" says "data.validation: other contents" "$box/out"
}

damage_is_found_first() {
  local shard=$box/run/checkpoints/step-00000006/rank-00000.safetensors
  configure
  train
  cp "$shard" "$box/whole"

  truncate -s -50 "$shard"
  refused 4 "step-00000006/rank-00000.safetensors" "tensor \"" "claims bytes" "--resume $box/run/checkpoints/step-00000004" -- \
    --set trainer.max_steps=8 -n 2
  cp "$box/whole" "$shard"
  flip "$shard" 100
  refused 4 "step-00000006/rank-00000.safetensors: tensor \"" "is damaged: bytes" \
    "--resume $box/run/checkpoints/step-00000004" -- --set trainer.max_steps=8
  # The next older checkpoint is damaged as well: an even older one is suggested.
  flip "$box/run/checkpoints/step-00000004/rank-00000.safetensors" 100
  refused 4 "--resume $box/run/checkpoints/step-00000002" -- --set trainer.max_steps=8
  cp "$box/whole" "$shard"
  truncate -s 300 "$box/run/checkpoints/step-00000006/manifest.json"
  refused 4 "step-00000006/manifest.json" "truncated" -- --set trainer.max_steps=8
  rm "$shard"
  refused 4 "step-00000006" -- --set trainer.max_steps=8

  train --set trainer.max_steps=8 --resume "$(offered)"
  expect "exit code 0 with the suggested checkpoint, not $code" test "$code" = 0
  expect "every step once" test "$(cut -d, -f1 "$box/run/metrics.jsonl" | uniq -d)" = ""
  train --set trainer.max_steps=10
  expect "exit code 0 of the next start, not $code" test "$code" = 0
}

damage_is_found_by_verify() {
  configure
  train
  "$tessera" checkpoint verify "$box/run" >"$box/out" 2>"$box/err"
  expect "exit code 0" test $? = 0
  flip "$box/run/checkpoints/step-00000004/rank-00000.safetensors" 100
  "$tessera" checkpoint verify "$box/run" >"$box/out" 2>"$box/err"
  expect "exit code 4" test $? = 4
  expect "the message names the tensor" says 'tensor "' "$box/err"
}

# A file size limit simulates a full disk: both are an error of write().
a_full_disk_does_not_end_training() {
  configure
  train --dry-run
  (
    ulimit -f 100
    train
    expect "exit code 9, not $code: $(cat "$box/err")" test "$code" = 9
  ) || exit 1
  expect "the failure is reported immediately" says "training goes on without this checkpoint" "$box/err"
  expect "the failure is reported at the end" says "trained to the end, but" "$box/err"
  expect "all steps were made" test "$(wc -l <"$box/run/metrics.jsonl")" = 6
  expect "status.json has the exit code" says '"exit_code": 9' "$box/run/status.json"
  expect "no partial checkpoint remains" test -z "$(find "$box/run/checkpoints" -mindepth 1)"
  train
  expect "exit code 0 without the limit, not $code" test "$code" = 0
}

a_full_disk_costs_no_older_checkpoint() {
  configure
  train
  (ulimit -f 100; train --set trainer.max_steps=10) || true
  expect "the failure is reported" says "training goes on without this checkpoint" "$box/err"
  expect "the older checkpoints are intact" "$tessera" checkpoint verify "$box/run" -q
  expect "three checkpoints remain" test "$(find "$box/run/checkpoints" -name 'step-*' | wc -l)" = 3
}

resolved_configurations_train_on_other_ranks() {
  configure
  train -n 2
  for ranks in 1 4; do
    timeout 120 "$tessera" train "$box/run/config.json" -n $ranks --set "run.dir=$box/again-$ranks" \
      >"$box/out" 2>"$box/err"
    expect "exit code 0 on $ranks ranks: $(cat "$box/err")" test $? = 0
    expect "the changed derived key is noted" says "gradient_accumulation_steps was 2" "$box/out"
    expect "the results are identical" "$tessera" compare "$box/run" "$box/again-$ranks"
  done
  # Unchanged, the configuration resumes in its own run folder.
  timeout 120 "$tessera" train "$box/run/config.json" -n 1 --set trainer.max_steps=8 >"$box/out" 2>"$box/err"
  expect "exit code 0: $(cat "$box/err")" test $? = 0
  expect "it resumed" says "from step 6" "$box/out"
}

a_run_of_several_ranks_can_be_evaluated() {
  configure
  train -n 2 --set data.validation_fraction=0.1
  "$tessera" eval "$box/run" >"$box/out" 2>"$box/err"
  expect "exit code 0: $(cat "$box/err")" test $? = 0
  expect "the loss is printed" says "perplexity" "$box/out"
}

claim "a resume with another model, vocabulary, seed or sequence length is rejected" another_run_is_refused
claim "a resume with other training data is rejected" other_data_is_refused
claim "a resume with other evaluation data is accepted with a note" other_evaluation_data_is_noted
claim "damage is found before a rank starts, and an intact older checkpoint is suggested" damage_is_found_first
claim "checkpoint verify finds damage" damage_is_found_by_verify
# Writes to /dev/full always fail.
unwritable_output_is_an_error() {
  configure
  train
  local command
  for command in "init" "config docs" "report $box/run" "report $box/run --json" "--help" "inspect $box/run --digest" "bench comm -n 2 --sizes 0.25 --repetitions 1" \
    "generate $box/run --prompt hi --max-new-tokens 2 -n 2"; do
    # shellcheck disable=SC2086  # words
    "$tessera" $command >/dev/full 2>"$box/err"
    code=$?
    expect "exit code 8 of $command, not $code" test "$code" = 8
    expect "the reason" says "cannot write standard output" "$box/err"
  done
  "$tessera" train "$box/tiny.json" --set "run.dir=$box/unheard" >/dev/full 2>"$box/err"
  code=$?
  expect "exit code 8 of a training, not $code" test "$code" = 8
  expect "which went to its end all the same" says '"state": "finished"' "$box/unheard/status.json"
}

a_full_disk_is_an_error_of_tokenize() {
  (
    ulimit -f 100
    "$tessera" tokenize examples/data/shakespeare.txt --out "$box/tokens" >"$box/out" 2>"$box/err"
  )
  code=$?
  expect "exit code 8, not $code" test "$code" = 8
  expect "the message names the file" says "$box/tokens" "$box/err"
  expect "no partial file remains" test -z "$(compgen -G "$box/tokens*")"
}

claim "tokenize fails on a full disk" a_full_disk_is_an_error_of_tokenize
claim "unwritable standard output is an error" unwritable_output_is_an_error
claim "a full disk does not end the training" a_full_disk_does_not_end_training
claim "a full disk does not damage older checkpoints" a_full_disk_costs_no_older_checkpoint
claim "a resolved configuration trains on other ranks" resolved_configurations_train_on_other_ranks
claim "a run of several ranks can be evaluated" a_run_of_several_ranks_can_be_evaluated
claims_done
