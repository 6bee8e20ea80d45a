# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Golden models that `tessera convert` reads give the recorded logits after conversion; a test that reads this file gets PROGRAM
# TESSERA.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=${1:?usage: PROGRAM TESSERA} tessera=${2:?usage: PROGRAM TESSERA}
models=${TESSERA_GOLDEN:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/reference}/models

# exported FIRST EVERY STEP...: converts golden models that generate text, from the FIRST one on each EVERYth one, by each STEP in
# turn (the arguments of a conversion), and compares the last result with the recorded answers. A model that the program refuses
# as not supported, or because its rotary positions need a length that the folder does not say, is left out.
exported() {
  local first=$1 every=$2 folder name at step number index=-1 taken=0 count=0
  shift 2
  mkdir -p "$box/other/models"
  for folder in "$models"/*/; do
    name=$(basename "$folder")
    [[ -f $folder/generation.json && -f $folder/expected.safetensors ]] || continue
    index=$((index + 1))
    ((index % every == first)) || continue
    taken=$((taken + 1))
    at=${folder%/}
    number=0
    for step in "$@"; do
      number=$((number + 1))
      # shellcheck disable=SC2086
      if ! "$tessera" convert "$at" "$box/$name-$number" $step >"$box/out" 2>&1; then
        expect "$name is refused as not supported: $(tail -3 "$box/out")" grep -Eq 'not built yet|not supported|set model.rope_length' "$box/out"
        continue 2
      fi
      at=$box/$name-$number
    done
    mv "$at" "$box/other/models/$name"
    cp "$folder"/{case.json,expected.safetensors,generation.json} "$box/other/models/$name"
    count=$((count + 1))
  done
  expect "models that generate text in $models" test "$index" -ge 0
  ((taken > 0)) || return 0  # a folder of one or two such models
  expect "some were converted" test "$count" -gt 0
  TESSERA_GOLDEN=$box/other "$program" --gtest_brief=1 \
    --gtest_filter='GoldenModels.GiveTheLogitsAndTheLoss:GoldenModels.ContinuePromptsGreedily' >"$box/out" 2>&1
  code=$?
  expect "exit code 0, not $code: $(tail -5 "$box/out")" test "$code" = 0
  expect "both tests were run" grep -Eq '\b2 tests' "$box/out"
}
