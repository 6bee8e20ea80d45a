#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Layouts are compared with one rank, from the command line.   usage: verify_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: verify_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

configure() {
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
  "optimizer": {"params": {"lr": 1e-3}}, "gradient_clipping": 1.0,
  "trainer": {"max_steps": 12}, "run": {"dir": "$box/run"}
}
EOF
}
# verify ARGUMENTS...: runs tessera verify; writes the output to $box/out and $box/err, and the exit code to $code.
verify() {
  timeout 120 "$tessera" verify "$box/tiny.json" "$@" >"$box/out" 2>"$box/err"
  code=$?
}

stages_and_shards_are_equal_to_the_bit() {
  configure
  verify -n 4 --set parallel.pipeline=2 --set zero_optimization.stage=3 --steps 3
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "the layout" says "layout    4 ranks: pp 2 x dp 2 x cp 1 x tp 1, ZeRO stage 3" "$box/out"
  expect "the reference" says "micro-batch 2 x accumulation 4" "$box/out"
  expect "the promise" says "promise   the same bits" "$box/out"
  expect "the verdict" says "equal: every bit is the same" "$box/out"
  expect "no run was begun" test ! -e "$box/run"
}

stages_cut_by_measured_costs_are_equal_to_the_bit() {
  configure
  verify -n 2 --set parallel.pipeline.size=2 --set parallel.pipeline.partition=profile --steps 3
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "the layout" says "layout    2 ranks: pp 2 x dp 1 x cp 1 x tp 1" "$box/out"
  expect "the promise" says "promise   the same bits" "$box/out"
  expect "the verdict" says "equal: every bit is the same" "$box/out"
}

shared_layers_are_equal_within_rounding() {
  configure
  verify -n 2 --set parallel.tensor=2 --set parallel.sequence=true --json
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "what is promised" says '"promise":"rounding"' "$box/out"
  expect "it is kept, and not equal" says '"equal":false,"kept":true' "$box/out"
  expect "ten steps" says '"steps":10' "$box/out"
  expect "the bound of the gradient" grep -qE '"first_gradient":\{[^}]*"bound":[0-9.]+e-0[56]' "$box/out"
  expect "the tensors" says '"wte.weight":{' "$box/out"
}

every_tensor_is_shown_where_asked() {
  configure
  verify -n 2 --steps 1 -v
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "a tensor of its own line" grep -q '^wte.weight  *0  *0$' "$box/out"
}

# Two micro-batches per rank are summed first: another rounding than on one rank, which "once" does not exclude.
a_promise_that_is_none_is_not_broken() {
  configure
  verify -n 2 --set gradient_reduction=once --steps 2
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "why" says 'within rounding: gradient_reduction "once"' "$box/out"
}

what_cannot_be_compared_is_refused() {
  configure
  verify -n 2 --against runs/other
  expect "exit code 2, not $code" test "$code" = 2
  expect "what is expected" says "expected single" "$box/err"
  verify -n 3 --set parallel.pipeline=2
  expect "exit code 2, not $code" test "$code" = 2
  expect "the product" says "pipeline 2 x tensor 1 x context 1 = 2" "$box/err"
  verify -n 2 --set optimizer.type=OneBitAdam
  expect "exit code 2, not $code" test "$code" = 2
  expect "why" says "promises nothing against one rank" "$box/err"
}

a_shorter_run_trains_as_many_steps_as_are_asked_for() {
  configure
  verify -n 2 --set trainer.max_steps=2 --steps 3 --json
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "three steps" says '"steps":3' "$box/out"
  expect "a note" says "--steps 3: the run has 2" "$box/err"
  verify -n 2 --set trainer.max_steps=2 --json
  expect "all of the run where nothing is asked for" says '"steps":2' "$box/out"
}

a_training_that_diverges_says_so() {
  configure
  verify -n 2 --set optimizer.lr=1e30 --set gradient_clipping=0 --set trainer.max_steps=10
  expect "exit code 7, not $code" test "$code" = 7
  expect "the step" says "diverged at step" "$box/err"
}

claim "stages and shards are equal to the bit" stages_and_shards_are_equal_to_the_bit
claim "stages cut by measured costs are equal to the bit" stages_cut_by_measured_costs_are_equal_to_the_bit
claim "shared layers are equal within rounding" shared_layers_are_equal_within_rounding
claim "every tensor is shown where asked" every_tensor_is_shown_where_asked
claim "a promise that is none is not broken" a_promise_that_is_none_is_not_broken
claim "what cannot be compared is refused" what_cannot_be_compared_is_refused
claim "a shorter run trains as many steps as are asked for" a_shorter_run_trains_as_many_steps_as_are_asked_for
claim "a training that diverges says so" a_training_that_diverges_says_so
claims_done
