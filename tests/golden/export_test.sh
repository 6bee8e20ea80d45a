#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# What `tessera convert` writes of the golden GPT-2s gives their recorded logits.   usage: export_test.sh PROGRAM TESSERA
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=${1:?usage: export_test.sh PROGRAM TESSERA}
tessera=${2:?usage: export_test.sh PROGRAM TESSERA}
models=${TESSERA_GOLDEN:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/reference}/models

# answers FOLDER: puts what is recorded of the model beside what was exported of it.
answers() { cp "$models"/gpt2/{case.json,expected.safetensors,generation.json} "$1"; }

# The golden tests on the one model in $box/other; their words go to $box/out, their code to $code.
check_logits() {
  TESSERA_GOLDEN=$box/other "$program" --gtest_brief=1 \
    --gtest_filter='GoldenModels.GiveTheLogitsAndTheLoss:GoldenModels.ContinuePromptsGreedily' >"$box/out" 2>&1
  code=$?
}

# exported SOURCE STEP...: converts the golden model SOURCE; each STEP is the arguments of one conversion of what the last
# one wrote.
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

# Proves that the exported weights are what is computed with: the last bytes are of one of them.
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
