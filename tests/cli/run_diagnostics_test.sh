#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 120
# Diagnostics of a run: all notes are in the log of rank 0, and non-finite weights are located.
# usage: run_diagnostics_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: run_diagnostics_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# train MEMBERS ARGUMENTS...: trains in $box/run; writes the output to $box/out and $box/err, the exit code to $code.
train() {
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 4, "trainer": {"max_steps": 2}, "run": {"dir": "$box/run", "threads_per_rank": 1}$1
}
EOF
  timeout 60 "$tessera" train "$box/tiny.json" "${@:2}" >"$box/out" 2>"$box/err"
  code=$?
}
silent() { ! grep -qF -- "$1" "$2"; }

notes_are_in_the_log() {
  local keys="" key
  # More notes than the table at the start shows.
  for key in overlap_comm reduce_scatter contiguous_gradients allgather_partitions round_robin_gradients \
    grad_hooks elastic_checkpoint ignore_unused_parameters memory_efficient_linear legacy_stage1 enable_sanity_checks \
    pipeline_loading_checkpoint override_module_apply use_multi_rank_bucket_allreduce log_trace_cache_warnings; do
    keys+="\"$key\": true, "
  done
  train ", \"gradient_clipping\": \"auto\", \"zero_optimization\": {$keys \"stage\": 1}" -n 2
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "the table is shortened" says "more notes in $box/run/logs/rank_00000.log" "$box/out"
  expect "the last note is not in it" silent "Hugging Face's default" "$box/out"
  for key in overlap_comm log_trace_cache_warnings; do
    expect "$key is noted" says "note: zero_optimization.$key is accepted" "$box/run/logs/rank_00000.log"
  done
  expect "auto is noted" says "gradient_clipping is \"auto\": Hugging Face's default" "$box/run/logs/rank_00000.log"
  expect "only one rank writes notes" silent "note: " "$box/run/logs/rank_00001.log"
}

# Creates a folder of weights in which one value of a block's matrix is NaN.
weights_with_a_nan() {
  train "" --set trainer.max_steps=1
  expect "the weights are exported" "$tessera" convert "$box/run" "$box/hf" --to hf
  rm -rf "$box/run"
  python3 - "$box/hf/model.safetensors" <<'EOF'
import json, struct, sys
with open(sys.argv[1], "r+b") as file:
    length = struct.unpack("<Q", file.read(8))[0]
    header = json.loads(file.read(length))
    name = next(key for key in header if key.endswith("h.1.mlp.c_fc.weight"))
    assert header[name]["dtype"] == "F32"
    file.seek(8 + length + header[name]["data_offsets"][0])
    file.write(struct.pack("<f", float("nan")))
EOF
}

a_nan_stops_the_run() {
  weights_with_a_nan
  train ", \"tokenizer\": {\"type\": \"byte\"}" -n 2 --set "model={\"from\": \"$box/hf\"}"
  expect "exit code 7, not $code: $(cat "$box/err")" test "$code" = 7
  expect "the message names the step" says "diverged at step 1: the loss of micro-batch 0 on rank 0 is" "$box/err"
  expect "the message names block and tensor" grep -q "gradient of .* in block .* is not finite" "$box/err"
  expect "no update was made" test ! -s "$box/run/metrics.jsonl"
  expect "the exit code is in status.json" says '"exit_code": 7' "$box/run/status.json"
}

claim "notes that the table does not show are in the log of rank 0" notes_are_in_the_log
claim "non-finite weights stop the run before its first update" a_nan_stops_the_run
claims_done
