#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A trained tokenizer is the same for any number of threads, and a model learns with it.   usage: tokenizer_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: tokenizer_test.sh PROGRAM}")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

learn() { # learn TYPE THREADS: writes $box/TYPE-THREADS
  "$tessera" tokenizer train "$box/text.txt" --type "$1" --vocab-size 400 --threads "$2" --out "$box/$1-$2" >"$box/out" 2>&1 ||
    { cat "$box/out" && exit 1; }
}
is_the_same_on_any_threads() {
  head -c 60000 "$root/examples/data/shakespeare.txt" >"$box/text.txt"
  learn "$1" 1
  learn "$1" 2
  expect "equal files" cmp "$box/$1-1/tokenizer.json" "$box/$1-2/tokenizer.json"
  cat >"$box/run.json" <<EOF
{
  "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2},
  "tokenizer": {"type": "file", "vocab": "$box/$1-1/tokenizer.json"},
  "data": {"train": "$box/text.txt", "sequence_length": 16}, "train_batch_size": 4, "trainer": {"max_steps": 2},
  "run": {"dir": "$box/run", "threads_per_rank": 1}
}
EOF
  timeout 60 "$tessera" train "$box/run.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "its size in the table" says "file tokenizer" "$box/out"
  "$tessera" generate "$box/run" --prompt "First" --max-new-tokens 4 >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  # Texts come back from their ids; WordPiece writes them in small letters.
  printf 'before we proceed\nhear me speak\n' >"$box/texts.txt"
  "$tessera" tokenizer encode "$box/run" "$box/texts.txt" --out "$box/ids.jsonl" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" tokenizer decode "$box/run" "$box/ids.jsonl" >"$box/back" 2>"$box/out" || { cat "$box/out" && exit 1; }
  expect "the texts: $(cat "$box/back")" test "$(cat "$box/back")" = '{"text":"before we proceed"}
{"text":"hear me speak"}'
  expect "a description" says '"end_of_text":' <("$tessera" tokenizer describe "$box/run")
}
refuses() {
  : >"$box/empty.txt"
  "$tessera" tokenizer train "$box/empty.txt" --out "$box/none" >"$box/out" 2>&1
  expect "exit code 3 without text" test $? -eq 3
  "$tessera" tokenizer learn "$box/empty.txt" --out "$box/none" >"$box/out" 2>&1
  expect "exit code 2 for another action" test $? -eq 2
  expect "nothing written" test ! -e "$box/none"
  printf '{"ids": [70, -1]}\n' >"$box/ids.jsonl"
  "$tessera" tokenizer decode "$box/none" "$box/ids.jsonl" >"$box/out" 2>&1
  expect "exit code 4 without a model" test $? -eq 4
  "$tessera" tokenizer describe "$box/none" "$box/ids.jsonl" >"$box/out" 2>&1
  expect "exit code 2 for a file that is not read" test $? -eq 2
  "$tessera" tokenizer decode "$box/none" "$box/ids.jsonl" --prompt >"$box/out" 2>&1
  expect "exit code 2 for a flag of another action" test $? -eq 2
}
claim "a BPE is the same on any threads, and is trained with" is_the_same_on_any_threads bpe
claim "WordPieces are the same on any threads, and are trained with" is_the_same_on_any_threads wordpiece
claim "Unigram pieces are the same on any threads, and are trained with" is_the_same_on_any_threads unigram
claim "what cannot be learned is refused" refuses
claims_done
