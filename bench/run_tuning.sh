#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures a bf16 step of fine-tuning on two threads, tessera and transformers with PEFT under torch.compile alternately: LoRA (r 8, all
# linear layers) of a Llama of 125M (B=4 T=512), and all parameters of a BERT-base classifier (B=32 T=128). Speed and peak memory.
#
# usage: bench/run_tuning.sh [ROUNDS [CASE...]]   CASE: lora bert (default: both); STEPS: steps of a run (default 8)
#                                                  PEERS: a Python that has torch 2.11, transformers 5 and peft (default ~/peers/bin/python)
#
# tessera keeps fp32 master weights of what it trains, transformers runs in bf16 autocast. Memory is the largest resident set of a process: of
# the rank that trains, and of the Python program.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-1}
cases=("${@:2}")
((${#cases[@]})) || cases=(lora bert)
source bench/by_turns.sh
ours tessera
theirs torch transformers peft
folder=$(mktemp -d)
trap 'rm -rf -- "$folder" "$results"' EXIT
steps=${STEPS:-8}

# config CASE: writes $folder/CASE.json; tokens are bytes, of which the vocabulary has unused rows.
config() {
  local model task data batch length
  case $1 in
    lora)
      batch=4 length=512
      model='"family": "llama", "num_layers": 12, "hidden_size": 768, "num_heads": 12, "num_kv_heads": 4, "ffn_hidden_size": 2048,
        "vocab_size": 32000, "max_positions": 2048'
      task='"adapter": {"type": "lora", "r": 8, "alpha": 8, "targets": "all-linear"},'
      data="\"train\": \"examples/data/shakespeare.txt\"" ;;
    bert)
      batch=32 length=128
      model='"family": "bert", "preset": "bert-base-uncased", "vocab_size": 30522'
      task='"task": "classify",'
      python3 - >"$folder/texts.jsonl" <<'TEXTS'
import json, random
draw = random.Random(1)
for i in range(512):
    print(json.dumps({"text": "".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=200)), "label": i % 2}))
TEXTS
      data="\"train\": \"$folder/texts.jsonl\"" ;;
    *) echo "run_tuning: unknown case $1; fix: lora or bert" >&2; exit 2 ;;
  esac
  cat >"$folder/$1.json" <<CONFIG
{
  "model": {$model}, $task
  "data": {$data, "sequence_length": $length},
  "train_batch_size": $batch, "train_micro_batch_size_per_gpu": $batch, "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "trainer": {"max_steps": $steps},
  "run": {"threads_per_rank": 2}, "checkpoint": {"every": 0, "final": false}
}
CONFIG
}

# step_of CASE TOKENS: trains, and prints the median step behind the first two and the peak of the process as JSON.
step_of() {
  rm -rf "$folder/run"
  python3 - "$bench" "$folder" "$1" "$2" <<'RUN'
import json, resource, statistics, subprocess, sys
program, folder, case, tokens = sys.argv[1:]
subprocess.run([program, "train", f"{folder}/{case}.json", "--set", f"run.dir={folder}/run", "--quiet"], check=True, stdout=sys.stderr)
rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
times = [row["step_ms"] for row in rows if "step_ms" in row]
step = statistics.median(times[2:])
print(json.dumps({"step_ms": round(step, 1), "tokens_per_s": round(1e3 * int(tokens) / step, 1), "steps": len(times),
                  "peak_rss_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024}))
RUN
}
export -f step_of
export bench folder

for ((round = 1; round <= rounds; ++round)); do
  for case in "${cases[@]}"; do
    [[ -e $folder/$case.json ]] || config "$case"
    case $case in
      lora) shape=(--model llama125m --batch 4 --seq 512 --lora 8) tokens=2048 ;;
      bert) shape=(--model bert-base-cls --batch 32 --seq 128) tokens=4096 ;;
    esac
    case_of "ours $case" bash -c "step_of $case $tokens"
    case_of "transformers $case" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/hf_train.py "${shape[@]}" --dtype autocast \
      --compile --steps "$steps"
  done
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
found = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    found.setdefault(name, []).append(json.loads(line))
median = {name: {key: statistics.median(run[key] for run in runs) for key in ("tokens_per_s", "peak_rss_mb")} for name, runs in found.items()}
print("\n| | ours, tokens/s | transformers, compiled | ratio | ours, MB | transformers | ratio |\n|---|---|---|---|---|---|---|")
for name in [name.removeprefix("ours ") for name in median if name.startswith("ours ")]:
    mine, other = median["ours " + name], median["transformers " + name]
    print(f"| {name} | {mine['tokens_per_s']:.0f} | {other['tokens_per_s']:.0f} | {mine['tokens_per_s'] / other['tokens_per_s']:.2f} "
          f"| {mine['peak_rss_mb']:.0f} | {other['peak_rss_mb']:.0f} | {mine['peak_rss_mb'] / other['peak_rss_mb']:.2f} |")
SUMMARY
