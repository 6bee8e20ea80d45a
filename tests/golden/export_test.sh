#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# The golden GPT-2s give their recorded logits after `tessera convert`.   usage: export_test.sh PROGRAM TESSERA
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=${1:?usage: export_test.sh PROGRAM TESSERA}
tessera=${2:?usage: export_test.sh PROGRAM TESSERA}
models=${TESSERA_GOLDEN:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/reference}/models

# answers FOLDER: copies the model's recorded answers next to its exported files.
answers() { cp "$models"/gpt2/{case.json,expected.safetensors,generation.json} "$1"; }

# Runs the golden tests on the one model in $box/other; writes the output to $box/out and the exit code to $code.
check_logits() {
  TESSERA_GOLDEN=$box/other "$program" --gtest_brief=1 \
    --gtest_filter='GoldenModels.GiveTheLogitsAndTheLoss:GoldenModels.ContinuePromptsGreedily' >"$box/out" 2>&1
  code=$?
}

# exported SOURCE STEP...: converts the golden model SOURCE; each STEP has the arguments of one conversion of the previous
# result.
exported() {
  local at=$models/$1 step number=0
  shift
  mkdir -p "$box/other/models"
  for step in "$@"; do
    number=$((number + 1))
    # shellcheck disable=SC2086
    expect "it is converted ($step)" "$tessera" convert "$at" "$box/$number" $step
    at=$box/$number
  done
  mv "$at" "$box/other/models/exported"
  answers "$box/other/models/exported"
}

gives_the_logits() {
  exported "$@"
  check_logits
  expect "exit code 0, not $code: $(tail -5 "$box/out")" test "$code" = 0
  expect "both tests were run" grep -Eq '\b2 tests' "$box/out"
}

in_shards() {
  gives_the_logits gpt2 "--shard-size 20kB"
  expect "there are shards" test -f "$box/other/models/exported/model.safetensors.index.json"
}

# Proves that the tests use the exported weights: the last bytes of the file belong to one of them.
another_weight_fails() {
  exported gpt2 "--to torch" ""
  truncate -s -64 "$box/other/models/exported/model.safetensors"
  head -c 64 /dev/zero | tr '\0' '?' >>"$box/other/models/exported/model.safetensors"
  check_logits
  expect "a failure" test "$code" != 0
}

claim "a folder in shards" in_shards
claim "one with pytorch_model.bin" gives_the_logits gpt2 "--to torch"
claim "of pytorch_model.bin one of safetensors" gives_the_logits gpt2_bin ""
claim "by way of a checkpoint of tessera" gives_the_logits gpt2 "--to tessera" "--shard-size 20kB"
claim "another weight there fails" another_weight_fails
claims_done
