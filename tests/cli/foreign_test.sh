#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Runs that resume from checkpoints of other programs, which tessera itself converted from a run: the results are
# identical.
# usage: foreign_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: foreign_test.sh PROGRAM}
golden=tests/golden/reference/interop
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

configure() {
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
  "optimizer": {"params": {"lr": 1e-3}}, "gradient_clipping": 1.0,
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 1e-3}},
  "trainer": {"max_steps": 9}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 4, "keep": 9}
}
EOF
  train whole -n 1
  checkpoint=$box/whole/checkpoints/step-00000004
}
# train NAME ARGUMENTS...: trains in $box/NAME; writes the output to $box/out and $box/err, and the exit code to $code.
train() {
  local name=$1
  shift
  timeout 120 "$tessera" train "$box/tiny.json" --set "run.dir=$box/$name" "$@" >"$box/out" 2>"$box/err"
  code=$?
}
losses() { sed -n 's/.*"step":\([0-9]*\),.*"loss":\([^,}]*\).*/\1 \2/p' "$1/metrics.jsonl" | awk '$1 > 4'; }
same_losses() {
  test "$(losses "$1" | wc -l)" = 5 && test "$(losses "$1")" = "$(losses "$2")"
}

goes_on() {
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "the five steps that follow have the same losses" same_losses "$box/whole" "$box/$1"
}

from_a_universal_checkpoint() {
  configure
  expect "it is written" "$tessera" convert "$checkpoint" "$box/ds" --to deepspeed-universal
  train again -n 2 --resume "$box/ds" --set zero_optimization.stage=3
  goes_on again
  expect "it says from what" says "a universal checkpoint of DeepSpeed" "$box/out"
}

from_a_training_loops_pair() {
  configure
  expect "it is written" "$tessera" convert "$checkpoint" "$box/model_000004.pth"
  train again -n 4 --resume "$box/model_000004.pth" --set zero_optimization.stage=2
  goes_on again
}

from_a_checkpoint_that_was_converted() {
  configure
  "$tessera" convert "$checkpoint" "$box/ds" --to deepspeed-universal
  "$tessera" convert "$checkpoint" "$box/hf"
  cp "$box/hf/config.json" "$box/hf/tokenizer.json" "$box/ds/"
  expect "it is written" "$tessera" convert "$box/ds" "$box/start" --to tessera
  train again -n 1 --resume "$box/start"
  goes_on again
  expect "text comes of it" "$tessera" generate "$box/start" --prompt "To be" --max-new-tokens 4
  expect "and of the universal checkpoint" "$tessera" generate "$box/ds" --prompt "To be" --max-new-tokens 4
}

weights_alone_do_not_resume() {
  configure
  "$tessera" convert "$checkpoint" "$box/hf"
  "$tessera" convert "$box/hf" "$box/start" --to tessera
  train again -n 1 --resume "$box/start"
  expect "exit code 4, not $code" test "$code" = 4
  expect "what to do" says "model.from" "$box/err"
}

another_model_is_refused() {
  configure
  train again -n 1 --resume "$golden/deepspeed_z2_bf16"
  expect "exit code 4, not $code" test "$code" = 4
  expect "the lists of names" says "does not fit the model" "$box/err"
}

claim "a universal checkpoint of DeepSpeed continues to the bit" from_a_universal_checkpoint
claim "model_N.pth and optimizer_N.pth go on to the bit" from_a_training_loops_pair
claim "a converted checkpoint continues to the bit, and generates" from_a_checkpoint_that_was_converted
claim "weights alone are not a training to resume" weights_alone_do_not_resume
claim "another model's training is refused" another_model_is_refused
claims_done
