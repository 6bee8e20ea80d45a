#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# A ViT learns two classes of images, on two ranks as on one; its Hugging Face folder keeps their names.   usage: image_classify_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: image_classify_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# Images of 12 x 10 pixels that are bright on the left or on the right.
pictures() {
  /usr/bin/python3 - "$box/set" <<'PYTHON'
import pathlib, struct, sys, zlib

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

for i in range(48):
    left = i % 2 == 0
    rows = b""
    for y in range(10):
        rows += b"\0"
        for x in range(12):
            light = 180 if (x < 6) == left else 40
            rows += bytes([(light + (i * 7 + x * 3 + y * 5 + c) % 50) for c in range(3)])
    folder = pathlib.Path(sys.argv[1]) / ("left" if left else "right")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 12, 10, 8, 2, 0, 0, 0))
                                      + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
PYTHON
}
# config MODEL: writes $box/train.json.
config() {
  cat >"$box/train.json" <<EOT
{
  "model": $1, "task": {"type": "image_classify"},
  "data": {"train": "$box/set", "validation_fraction": 0.25},
  "train_batch_size": 12, "train_micro_batch_size_per_gpu": 3, "optimizer": {"params": {"lr": 3e-3}},
  "trainer": {"max_steps": 30}, "eval": {"every": 15}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 15}
}
EOT
}
readonly kTiny='{"family": "vit", "num_layers": 2, "hidden_size": 32, "num_heads": 4, "image_size": 8, "patch_size": 4}'
# train NAME ARGUMENT...: trains in $box/NAME.
train() {
  timeout 120 "$tessera" train "$box/train.json" --set "run.dir=$box/$1" "${@:2}" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
learns_on_any_ranks() {
  pictures
  config "$kTiny"
  train one -n 1
  train two -n 2
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  "$tessera" eval "$box/two" --threads 1 >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "every held-out picture with its label" says "accuracy 1.0" "$box/eval"
  train half -n 2 --set trainer.max_steps=15
  train half -n 1 --resume auto
  expect "the same after a resume on other ranks" "$tessera" compare "$box/one" "$box/half"
  train zero -n 2 --set zero_optimization.stage=3
  expect "the same with ZeRO" "$tessera" compare "$box/one" "$box/zero"
}
keeps_the_names_of_the_classes() {
  pictures
  config "$kTiny"
  train one -n 1 --set trainer.max_steps=2
  "$tessera" convert "$box/one" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the architecture" grep -q ViTForImageClassification "$box/hf/config.json"
  expect "the names by their ids" grep -q '"0": "left"' "$box/hf/config.json"
  expect "the ids by their names" grep -q '"right": 1' "$box/hf/config.json"
  config "{\"from\": \"$box/hf\"}"
  train again -n 1 --set trainer.max_steps=2
  expect "a head that goes on" refuses_nothing
  "$tessera" convert "$box/again" "$box/hf2" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the names again" grep -q '"1": "right"' "$box/hf2/config.json"
  expect "the preprocessing" grep -q '"ViTImageProcessor"' "$box/hf/preprocessor_config.json"
  expect "it stays the same" cmp "$box/hf/preprocessor_config.json" "$box/hf2/preprocessor_config.json"
  # The preprocessing of the folder from which a model begins is that of the folders that are made of it.
  echo '{"size": 8, "resample": 3, "image_mean": 0.25}' >"$box/hf/preprocessor_config.json"
  train third -n 1 --set trainer.max_steps=1
  "$tessera" convert "$box/third" "$box/hf3" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "its mean" grep -q '0.25' "$box/hf3/preprocessor_config.json"
}
refuses_nothing() { ! grep -q "starts from new weights" "$box/out" "$box/err"; }
refuses_what_does_not_fit() {
  pictures
  config '{"family": "bert", "num_layers": 1, "hidden_size": 16, "num_heads": 2}'
  "$tessera" train "$box/train.json" --set "run.dir=$box/run" >"$box/out" 2>&1 && echo "a text encoder read pictures" && exit 1
  expect "what is wrong" says "image_classification reads images" "$box/out"
}
claim "vit learns two classes, with the same bits on two ranks" learns_on_any_ranks
claim "a Hugging Face folder has the names of the classes" keeps_the_names_of_the_classes
claim "a model of texts is refused" refuses_what_does_not_fit
claims_done
