#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how long labelled texts in csv and jsonl files take to become samples (token ids, labels, length 128) on one thread, in
# tessera and in Hugging Face's datasets with the same tokenizer (GPT-2's BPE), alternately. A program's time with a file of 16 records is
# subtracted, so that its start does not count.
#
# usage: bench/run_records.sh [RECORDS]   RECORDS: 60000; PEERS: a Python that has datasets and tokenizers (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source bench/by_turns.sh
ours tessera
theirs datasets tokenizers
folder=$(mktemp -d)
trap 'rm -rf -- "$folder" "$results"' EXIT
python3 - examples/data/shakespeare.txt "$folder" "${1:-60000}" <<'PY'
import csv, json, sys
words = open(sys.argv[1], encoding="utf-8").read().split()
for name, count in (("few", 16), ("all", int(sys.argv[3]))):
    with open(f"{sys.argv[2]}/{name}.csv", "w", newline="") as table, open(f"{sys.argv[2]}/{name}.jsonl", "w") as lines:
        rows = csv.writer(table)
        rows.writerow(["text", "label"])
        for i in range(count):
            begin = (i * 61) % (len(words) - 200)
            text = " ".join(words[begin:begin + 20 + i % 80])
            rows.writerow([text, f"class {i % 5}"])
            lines.write(json.dumps({"text": text, "label": f"class {i % 5}"}) + "\n")
PY
seconds() { # seconds COMMAND...: its wall time on one core
  /usr/bin/time -f '%e' -o "$folder/time" taskset -c 0 "$@" >"$folder/out" 2>&1 || { cat "$folder/out" >&2 && exit 1; }
  tail -n 1 "$folder/time"
}
tessera_reads() { # tessera_reads FILE
  rm -rf "$folder/cache"
  TESSERA_CACHE=$folder/cache seconds build/release/bin/tessera train "$folder/config.json" --dry-run --set "data.train=$1"
}
peers_read() {
  rm -rf "$folder/cache"
  HF_HOME=$folder/cache TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 seconds "$peers" bench/peers/read_records.py \
    share/gpt2/vocab.json share/gpt2/merges.txt "$1"
}
cat >"$folder/config.json" <<'JSON'
{"model": {"family": "gpt2", "num_layers": 1, "hidden_size": 32, "num_heads": 2, "max_positions": 128}, "tokenizer": {"type": "gpt2"},
 "task": "classify", "data": {"train": "", "sequence_length": 128}, "train_batch_size": 8, "optimizer": {"params": {"lr": 1e-3}},
 "run": {"threads_per_rank": 1}}
JSON
for kind in csv jsonl; do
  for _ in 1 2 3; do
    ours_s=$(python3 -c "print($(tessera_reads "$folder/all.$kind") - $(tessera_reads "$folder/few.$kind"))")
    theirs_s=$(python3 -c "print($(peers_read "$folder/all.$kind") - $(peers_read "$folder/few.$kind"))")
    printf '%s %s bytes: tessera %.2f s, datasets %.2f s, %.1f times\n' "$kind" "$(stat -c %s "$folder/all.$kind")" "$ours_s" "$theirs_s" \
      "$(python3 -c "print($theirs_s / $ours_s)")"
  done
done
