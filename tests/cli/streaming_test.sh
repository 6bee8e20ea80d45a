#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# Records that are read from their files while training: the same bits on any number of ranks and after a resume.   usage: streaming_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: streaming_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# Six files of records: plain, compressed, and a table.
records() {
  /usr/bin/python3 - "$box" <<'PYTHON'
import csv, gzip, json, pathlib, sys
folder = pathlib.Path(sys.argv[1]) / "shards"
folder.mkdir()
for f in range(6):
    rows = [{"text": "abcdefgh"[(f + r) % 8] * (3 + r % 5) + str(f), "label": "even" if (f + r) % 2 == 0 else "odd"} for r in range(8 + f)]
    if f == 5:
        with open(folder / "5.csv", "w", newline="") as out:
            table = csv.DictWriter(out, ["text", "label"])
            table.writeheader()
            table.writerows(rows)
        continue
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / f"{f}.jsonl.gz").write_bytes(gzip.compress(lines)) if f == 3 else (folder / f"{f}.jsonl").write_bytes(lines)
PYTHON
}
# Four files of pairs of answers.
preferences() {
  mkdir "$box/shards"
  for f in 0 1 2 3; do
    for r in 0 1 2 3; do echo "{\"prompt\": \"$f+$r=\", \"chosen\": \"$((f + r))\", \"rejected\": \"no\"}"; done >"$box/shards/$f.jsonl"
  done
}
configuration() { # configuration TASK MODEL
  cat <<EOF
{
  "model": {$2, "num_layers": 1, "hidden_size": 16, "num_heads": 2, "max_positions": 32},
  "task": "$1",
  "data": {"train": "$box/shards", "sequence_length": 32, "streaming": 2},
  "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "optimizer": {"params": {"lr": 1e-2}},
  "trainer": {"epochs": 2}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 5}
}
EOF
}
train() { # train NAME RANKS KEY=VALUE...
  local name=$1 ranks=$2
  shift 2
  timeout 120 "$tessera" train "$box/run.json" -n "$ranks" --set "run.dir=$box/$name" "$@" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
fails() { ! "$@" >"$box/failed" 2>&1; }
same_on_any_ranks() { # same_on_any_ranks TASK MODEL STEPS [FILES]
  "${4:-records}"
  configuration "$1" "$2" >"$box/run.json"
  train one 1
  train four 4
  expect "equal runs" "$tessera" compare "$box/one" "$box/four"
  # A resume within the first epoch, on another number of ranks.
  train halves 2 --set "trainer.max_steps=$3"
  train halves 1
  expect "equal runs after a resume" "$tessera" compare "$box/halves" "$box/four"
  train other 1 --set trainer.seed=7
  expect "another run with another seed" fails "$tessera" compare "$box/other" "$box/four"
}
other_order_is_no_resume() {
  records
  configuration classify '"family": "bert"' >"$box/run.json"
  train one 1 --set trainer.max_steps=5
  expect "a refusal" fails timeout 60 "$tessera" train "$box/run.json" --set "run.dir=$box/one" --set data.streaming=3
  expect "its reason" says "data" "$box/failed"
}
shows_samples() {
  records
  configuration classify '"family": "bert"' >"$box/run.json"
  "$tessera" data "$box/run.json" >"$box/out" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "the counts of all files" says "63" "$box/out"
}
holds_out_texts() {
  records
  configuration pretrain '"family": "gpt2"' >"$box/run.json"
  train held 1 --set data.validation_fraction=0.3 --set trainer.epochs=1 --set checkpoint.every=0
  expect "a loss" "$tessera" eval "$box/held" --threads 1
}
claim "labelled texts in files" same_on_any_ranks classify '"family": "bert"' 5
claim "packed texts in files" same_on_any_ranks sft '"family": "llama"' 2
claim "windows of texts in files" same_on_any_ranks pretrain '"family": "gpt2"' 3
claim "the end of texts is held out" holds_out_texts
claim "pairs of answers in files, with a reference" same_on_any_ranks prefer '"family": "gpt2"' 3 preferences
claim "another window is another order" other_order_is_no_resume
claim "tessera data counts all files" shows_samples
claims_done
