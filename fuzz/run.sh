#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes every reader of files from outside, SECONDS each, with the recorded files as seeds; needs clang++ with libFuzzer.
# usage: fuzz/run.sh [SECONDS=60] [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
shift || true
clang=$(command -v clang++ || command -v clang++-14) || { echo "fuzz/run.sh: no clang++ here"; exit 77; }
golden=tests/golden/reference
build=build/fuzz
mkdir -p "$build/objects" "$build/corpus"

flags=(-std=c++20 -O1 -g -I. -DFMT_SHARED -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
sources=(tessera/base/*.cpp tessera/config/*.cpp tessera/mesh/*.cpp tessera/checkpoint/*.cpp
  tessera/data/{token_file,llmc_tokens}.cpp fuzz/readers.cpp)
compile() {
  local object=$build/objects/${1//\//_}.o
  [[ $object -nt $1 ]] || "$clang" "${flags[@]}" -c "$1" -o "$object"
}
for source in "${sources[@]}"; do
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
  compile "$source" &
done
wait
objects=()
for source in "${sources[@]}"; do objects+=("$build/objects/${source//\//_}.o"); done
"$clang" -fsanitize=fuzzer,address,undefined "${objects[@]}" -lfmt -lxxhash -lspdlog -o "$build/readers"

seeds() { # seeds TARGET FILE...
  local target=$1 file
  mkdir -p "$build/corpus/$target"
  shift
  for file in "$@"; do [[ ! -f $file ]] || cp --no-preserve=mode "$file" "$build/corpus/$target/$(echo "$file" | tr / _)"; done
}
seeds safetensors "$golden"/models/*/model*.safetensors
seeds torch "$golden"/models/*/pytorch_model.bin "$golden"/interop/*/*.bin "$golden"/interop/*/*.pth tests/checkpoint/data/*.pt \
  "$golden"/interop/*/global_step5/*.pt
seeds index "$golden"/models/*/*.index.json
seeds deepspeed "$golden"/interop/deepspeed_z1_fp32/global_step5/mp_rank_00_model_states.pt
seeds deepspeed-optimizer "$golden"/interop/deepspeed_z1_fp32/global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt
seeds manifest
seeds tokens
seeds llmc
seeds llmc-tokens
declare -A around=([index]=$golden/models/llama_bf16_sharded [deepspeed]=$golden/interop/deepspeed_z1_fp32
  [deepspeed-optimizer]=$golden/interop/deepspeed_z1_fp32)

targets=("$@")
((${#targets[@]} > 0)) || targets=(safetensors torch index manifest tokens llmc llmc-tokens deepspeed deepspeed-optimizer)
for target in "${targets[@]}"; do
  echo "fuzzing $target for $seconds s"
  TESSERA_FUZZ=$target TESSERA_FUZZ_AROUND=${around[$target]:-} "$build/readers" -max_total_time="$seconds" -max_len=1000000 \
    -rss_limit_mb=2048 -timeout=20 -print_final_stats=0 -verbosity=0 -artifact_prefix="$build/$target-" "$build/corpus/$target"
done
rm -rf /dev/shm/tessera-fuzz-*
