#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes every reader of external files for SECONDS each, with the recorded files and fuzz/corpus as seeds. Needs clang++
# with libFuzzer (Debian: apt-get install clang). Findings are written to build/fuzz/TARGET-crash-... and similar files.
# usage: fuzz/run.sh [SECONDS=60] [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
shift || true
clang=$(command -v clang++ || command -v clang++-14) || { echo "fuzz/run.sh: no clang++ here; fix: apt-get install clang"; exit 77; }
golden=tests/golden/reference
build=build/fuzz
mkdir -p "$build/objects" "$build/corpus"

flags=(-std=c++20 -O1 -g -I. -DFMT_SHARED -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
sources=(tessera/base/*.cpp tessera/config/*.cpp tessera/mesh/*.cpp tessera/checkpoint/*.cpp tessera/interop/{bmtrain,deepspeed,llmc,megatron,nanogpt,torch}/*.cpp tessera/interop/{export,foreign,npy,weights}.cpp
  tessera/interop/{command_meaning,command_members,command_words,dataset_names,foreign_command,foreign_flags,monitor_flags,option_table,option_values,short_forms,toml,yaml}.cpp tessera/interop/colossal/python_literal.cpp
  tessera/interop/huggingface/{commands,trainer_rules}.cpp tessera/interop/{axolotl,launchers,llamafactory,tencentpretrain,torchtitan,trl}/*.cpp tessera/interop/peft/command_rules.cpp
  tessera/interop/gguf/{blocks,file,layout,long_rope,parts,reader,rotary,splits,tokenizer,tokenizer_export}.cpp
  tessera/interop/huggingface/{bitsandbytes,mxfp4,quantized_weights,sentence_transformers}.cpp tessera/interop/onnx/file.cpp
  tessera/optim/batch_ramp.cpp tessera/report/{expert_loads,svg}.cpp tessera/data/token_writer.cpp tessera/text/chat/*.cpp tessera/text/tokenizers/*.cpp tessera/data/images/*.cpp tessera/data/record_formats/*.cpp tessera/data/{records,class_names,datasets_folder,slices,sources,token_file,llmc_tokens,json_line,block_sums,text_encoding}.cpp tessera/text/{small_file,file_tokenizer,tokenizer_json,tokenizer,gpt2_tokenizer,bpe,bpe_files,unicode_class}.cpp tessera/models/{gpt_names,gguf_names,megatron_names,modelcenter_names,module_order}.cpp fuzz/readers.cpp)
newest_header=$(find tessera fuzz -name '*.h' -newer "$build/readers" -print -quit 2>/dev/null || echo none)
compile() {
  local object=$build/objects/${1//\//_}.o
  [[ -z $newest_header && $object -nt $1 ]] || "$clang" "${flags[@]}" -c "$1" -o "$object"
}
running=()
for source in "${sources[@]}"; do
  if ((${#running[@]} >= $(nproc))); then
    wait "${running[0]}"
    running=("${running[@]:1}")
  fi
  compile "$source" &
  running+=($!)
done
for job in "${running[@]}"; do wait "$job"; done
objects=()
for source in "${sources[@]}"; do objects+=("$build/objects/${source//\//_}.o"); done
"$clang" -fsanitize=fuzzer,address,undefined "${objects[@]}" -lfmt -lyaml-cpp -lxxhash -lspdlog -lutf8proc -lpcre2-8 -lpng -ljpeg -lz -lzstd -ldl -o "$build/readers"

seeds() { # seeds TARGET FILE...
  local target=$1 file
  mkdir -p "$build/corpus/$target"
  shift
  for file in "$@" "fuzz/corpus/$target"/*; do
    [[ ! -f $file ]] || cp --no-preserve=mode "$file" "$build/corpus/$target/$(echo "$file" | tr / _)"
  done
}
torch=("$golden"/models/*/pytorch_model.bin "$golden"/interop/*/*.bin "$golden"/interop/*/*.pth tests/interop/data/*.pt
  "$golden"/interop/*/global_step5/*.pt)
seeds safetensors "$golden"/models/*/model*.safetensors
seeds torch "${torch[@]}"
seeds chat "$golden"/chat/*/chat_template.jinja
seeds index "$golden"/models/*/*.index.json
seeds torch-loop "$golden"/interop/torch_tutorial/optimizer_000005.pth
seeds deepspeed "$golden"/interop/deepspeed_z1_fp32/global_step5/mp_rank_00_model_states.pt
seeds deepspeed-optimizer "$golden"/interop/deepspeed_z1_fp32/global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt
seeds torch-loop-model "$golden"/interop/torch_tutorial/model_000005.pth
seeds deepspeed-sharded-model "$golden"/interop/deepspeed_z3_bf16/global_step5/zero_pp_rank_0_mp_rank_00_model_states.pt
seeds deepspeed-sharded "$golden"/interop/deepspeed_z3_bf16/global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt
seeds gguf tests/interop/data/gguf_families/{gpt-oss,dbrx,phimoe,phimoe_longrope}.gguf tests/interop/data/gguf_mxfp4.gguf
for target in quantized manifest tokens gguf nanogpt onnx llmc llmc-tokens megatron modelcenter universal universal-states deepspeed-stage3 deepspeed-experts deepspeed-expert-names expert-loads \
  vocab merges tokenizer bert-vocabulary tokenizer-settings sentencepiece tiktoken jsonl records arrow parquet table image yaml; do seeds "$target"; done

targets=("$@")
((${#targets[@]} > 0)) || targets=(safetensors quantized torch index manifest tokens gguf nanogpt onnx llmc llmc-tokens megatron modelcenter torch-loop
  torch-loop-model deepspeed deepspeed-optimizer deepspeed-sharded deepspeed-sharded-model deepspeed-stage3 deepspeed-experts deepspeed-expert-names expert-loads universal
  universal-states vocab merges tokenizer bert-vocabulary tokenizer-settings sentencepiece tiktoken jsonl records arrow parquet table chat image yaml)
for target in "${targets[@]}"; do
  echo "fuzzing $target for $seconds s"
  TESSERA_FUZZ=$target "$build/readers" -max_total_time="$seconds" -max_len=1000000 -rss_limit_mb=2048 -timeout=20 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$build/$target-" "$build/corpus/$target" 2>"$build/$target.log" ||
    { cat "$build/$target.log"; rm -rf /dev/shm/tessera-fuzz-*; exit 1; }
  sed -n 's/^stat::number_of_executed_units: */  executions: /p' "$build/$target.log"
done
rm -rf /dev/shm/tessera-fuzz-*
