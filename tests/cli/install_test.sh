#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# An installed program works away from its source tree.   usage: install_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
built=$(dirname "$(dirname "${1:?usage: install_test.sh PROGRAM}")")
text=$PWD/examples/data/shakespeare.txt

an_installed_program_trains() {
  export TESSERA_CACHE=$box/cache
  cmake --install "$built" --prefix "$box/prefix" >"$box/out" 2>&1
  expect "exit code 0 of cmake --install" test $? = 0
  cd "$box" || exit 1
  cat >tiny.json <<EOF
{"model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2}, "tokenizer": {"type": "gpt2"},
 "data": {"train": "$text", "sequence_length": 8}, "train_batch_size": 2, "trainer": {"max_steps": 1}}
EOF
  prefix/bin/tessera train tiny.json -n 1 >"$box/out" 2>&1
  expect "exit code 0, not $?" test $? = 0
  expect "a step" says "step 1/1" "$box/out"
}

claim "an installed program trains with its own vocabulary" an_installed_program_trains
claims_done
