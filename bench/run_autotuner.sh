#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DeepSpeed's autotuner and `tessera train --autotuning tune` search the micro-batch of the same GPT-2 (4 layers, 50,304 tokens, global batch 16)
# on two ranks of one thread, with the same block `autotuning`. Prints the time of each search, its winner and its best throughput.
# usage: bench/run_autotuner.sh TESSERA FOLDER     PEERS: a Python that has torch 2.11 and deepspeed (default ~/peers/bin/python)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tessera=$(realpath "${1:?usage: run_autotuner.sh TESSERA FOLDER}")
folder=$(realpath -m "${2:?a folder}")
python=${PEERS:-~/peers/bin/python}
mkdir -p "$folder/bin" "$folder/theirs" "$folder/ours"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TESSERA_CACHE=${TESSERA_CACHE:-$folder/cache}
mkdir -p "$TESSERA_CACHE"
[[ -e $TESSERA_CACHE/machine.json ]] || "$tessera" bench machine
tuning='"train_batch_size": 16, "zero_optimization": {"stage": 0}, "autotuning": {"enabled": true, "fast": true, "tuner_type": "gridsearch",
  "max_train_micro_batch_size_per_gpu": 8, "num_tuning_micro_batch_sizes": 3, "start_profile_step": 3, "end_profile_step": 5, "overwrite": true}'

# DeepSpeed calls pdsh to clean up after a trial, also on the only host, where there is nothing to do.
printf '#!/bin/sh\nexit 0\n' >"$folder/bin/pdsh" && chmod +x "$folder/bin/pdsh"
cp "$here"/peers/{deepspeed_tuned,gpt2_layer}.py "$folder/theirs"
cat >"$folder/theirs/ds.json" <<JSON
{"train_micro_batch_size_per_gpu": "auto", "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": true}}, $tuning}
JSON
for i in $(seq 4000); do echo "line $i of a text that nobody has to learn"; done >"$folder/ours/text.txt"
cat >"$folder/ours/ds.json" <<JSON
{"model": {"family": "gpt2", "num_layers": 4, "hidden_size": 128, "num_heads": 4, "vocab_size": 50304, "max_positions": 64},
 "tokenizer": {"type": "byte"}, "data": {"train": "text.txt", "sequence_length": 64}, "trainer": {"max_steps": 30}, "eval": {"every": 0},
 "checkpoint": {"every": 0, "final": false}, "run": {"dir": "run", "threads_per_rank": 1},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, $tuning}
JSON

# report WHO SECONDS FOLDER: the winner and the samples in a second of its trial.
report() {
  "$python" - "$1" "$2" "$3" <<'PY'
import glob, json, sys
who, seconds, folder = sys.argv[1:]
best = json.load(open(f"{folder}/autotuning_results/ds_config_optimal.json"))
rates = [json.load(open(path))["throughput"] for path in glob.glob(f"{folder}/autotuning_*/*/metrics.json")]
print(f"{who}: {seconds} s, micro-batch {best['train_micro_batch_size_per_gpu']} x {best.get('gradient_accumulation_steps', 1)}, "
      f"{max(rates):.2f} samples/s, {len(rates)} configurations measured", flush=True)
PY
}
cd "$folder/theirs"
# Its extension for shared memory is compiled once, before the time counts. LOCAL_SIZE: otherwise it counts another number of devices.
export DS_ACCELERATOR=cpu LOCAL_SIZE=2 MAX_JOBS=1 TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$folder/extensions}
export PATH=$folder/bin:$(dirname "$python"):$PATH
RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29777 \
  "$python" -c 'import deepspeed; deepspeed.init_distributed(dist_backend="gloo")' >prepared.log 2>&1
rm -rf autotuning_results autotuning_exps
begin=$(date +%s.%N)
"$python" -c 'from deepspeed.launcher.runner import main; main()' --autotuning tune --num_gpus 2 deepspeed_tuned.py --deepspeed \
  --deepspeed_config ds.json >tuned.log 2>&1
report DeepSpeed "$(awk "BEGIN {printf \"%.1f\", $(date +%s.%N) - $begin}")" .
cd "$folder/ours"
rm -rf autotuning_results autotuning_exps
begin=$(date +%s.%N)
"$tessera" train ds.json -n 2 --autotuning tune >tuned.log 2>&1
report tessera "$(awk "BEGIN {printf \"%.1f\", $(date +%s.%N) - $begin}")" .
