#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# timeout: 300
# TensorBoard's own reader, from its wheel, reads what a training writes; so do readers of W&B and Comet where they are installed.
# usage: monitors_test.sh PROGRAM   (PYTHON: an interpreter that has the wheels; default python3)
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: monitors_test.sh PROGRAM}")
python=${PYTHON:-python3}
"$python" -c 'import tensorboard' 2>/dev/null || exit 77
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

train() {
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 1, "hidden_size": 32, "num_heads": 2},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16, "validation_fraction": 0.1},
  "train_batch_size": 4, "trainer": {"max_steps": ${1:-6}}, "run": {"dir": "$box/run", "threads_per_rank": 1},
  "eval": {"every": 3, "batches": 1, "prompt": "a", "max_new_tokens": 3}, "checkpoint": {"every": 3},
  "tensorboard": {"enabled": true}, "wandb": {"enabled": true}, "comet": {"enabled": true}
}
EOF
  timeout 120 "$tessera" train "$box/tiny.json" >"$box/out" 2>"$box/err"
  code=$?
}

tensorboard_reads_scalars_texts_and_hyperparameters() {
  train
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  "$python" - "$box/run/tensorboard" >"$box/read" <<'EOF'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()
print(sorted(tags["scalars"]))
loss = events.Scalars("Train/Samples/train_loss")
print("loss", [e.step for e in loss])
print("eval", [e.step for e in events.Scalars("Train/Samples/eval_loss")])
print("tensors", sorted(tags["tensors"]))
EOF
  expect "every step over samples" says "loss [4, 8, 12, 16, 20, 24]" "$box/read"
  expect "evaluations" says "eval [12, 24]" "$box/read"
  expect "sample texts" says "sample/text_summary" "$box/read"
}

a_resume_replaces_what_lies_behind_it() {
  train 6
  rm -rf "$box/run/checkpoints/step-00000006"
  printf step-00000003 >"$box/run/checkpoints/latest"
  train 6
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  "$python" - "$box/run/tensorboard" >"$box/read" <<'EOF'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print("loss", [e.step for e in events.Scalars("Train/Samples/train_loss")])
EOF
  expect "each step once" says "loss [4, 8, 12, 16, 20, 24]" "$box/read"
}

tensorboard_reads_histograms() {
  train 6
  rm -rf "$box/run"
  sed -i 's/"tensorboard": {"enabled": true}/"tensorboard": {"enabled": true, "histograms": 3}/' "$box/tiny.json"
  timeout 120 "$tessera" train "$box/tiny.json" >"$box/out" 2>"$box/err"
  "$python" - "$box/run/tensorboard" >"$box/read" <<'EOF'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"histograms": 0})  # all of them
events.Reload()
tags = events.Tags()["histograms"]
print(len([t for t in tags if t.startswith("weights/")]) == len([t for t in tags if t.startswith("gradients/")]) > 5)
of_one = events.Histograms(sorted(tags)[0])
print("steps", [e.step for e in of_one])
one = of_one[0].histogram_value
print("whole", sum(one.bucket) == one.num, len(one.bucket) == len(one.bucket_limit), one.min <= one.max)
EOF
  expect "every parameter twice" says "True" "$box/read"
  expect "every third step" says "steps [12, 24]" "$box/read"
  expect "whole buckets" says "whole True True True" "$box/read"
}

wandb_reads_the_history() {
  train
  "$python" - "$box"/run/wandb/offline-run-*/run-*.wandb >"$box/read" <<'EOF'
import struct, sys, zlib
from wandb.proto import wandb_internal_pb2 as pb
data = open(sys.argv[1], "rb").read()
at, record, kinds, steps = 7, b"", [], []
while at < len(data):
    left = 32768 - at % 32768
    if left < 7:
        at += left
        continue
    crc, size, kind = struct.unpack("<IHB", data[at:at + 7])
    piece = data[at + 7:at + 7 + size]
    assert zlib.crc32(bytes([kind]) + piece) == crc
    at += 7 + size
    record += piece
    if kind in (1, 4):
        message = pb.Record.FromString(record)
        record = b""
        kinds.append(message.WhichOneof("record_type"))
        if kinds[-1] == "history":
            steps.append(message.history.step.num)
print(kinds[:2], kinds[-2:], steps[:2])
EOF
  expect "its records" says "['header', 'run'] ['summary', 'exit'] [4, 8]" "$box/read"
}

comets_archive_opens() {
  train
  "$python" - "$box"/run/comet/*.zip >"$box/read" <<'EOF'
import json, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
assert archive.testzip() is None
about = json.load(archive.open("experiment.json"))
messages = [json.loads(line) for line in archive.open("messages.json")]
print(sorted(archive.namelist()), len(about["offline_id"]), sorted({m["type"] for m in messages}))
EOF
  expect "its contents" says "['experiment.json', 'messages.json'] 32 ['log_other', 'metric_msg', 'parameter_msg']" "$box/read"
}

claim "TensorBoard reads scalars, texts and hyperparameters" tensorboard_reads_scalars_texts_and_hyperparameters
claim "TensorBoard reads histograms" tensorboard_reads_histograms
claim "a resume replaces later steps" a_resume_replaces_what_lies_behind_it
if "$python" -c 'import wandb' 2>/dev/null; then
  claim "W&B reads the history" wandb_reads_the_history
fi
claim "Comet's archive opens" comets_archive_opens
claims_done
