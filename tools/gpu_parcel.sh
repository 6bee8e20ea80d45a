#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what tools/gpu_check.sh needs into one file for a host with a GPU, on which nothing is built.
#
#   tools/gpu_parcel.sh FILE.tar.xz [BUILD]     packs the program, its libraries, tests and sources of data (BUILD: build/release)
#   tools/gpu_parcel.sh --rehearse FILE [BUILD] packs the simulated CUDA libraries in place of the plugin, for a rehearsal
#   tools/gpu_parcel.sh --unpack FILE FOLDER    unpacks it, and says how to start the check
#
# The file has the stripped program, libtessera.so, the plugin, devices_test, and the system's libraries that a plain Ubuntu lacks. The
# host needs torch 2.11 with CUDA 13: its folder torch/lib is linked in place of this machine's libtorch (TORCH, by default that of
# python3). A file above 64 MiB is refused.
set -euo pipefail
cuda_of() {  # the folder of torch's libraries with CUDA
  local torch=${TORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null)}
  [[ -e $torch/lib/libtorch_cuda.so ]] ||
    { printf 'gpu_parcel: %s has no libtorch_cuda.so\n  fix: TORCH=/the/folder/torch of torch 2.11 with CUDA 13\n' "${torch:-python3}" >&2; return 8; }
  printf '%s/lib' "$torch"
}
if [[ ${1:-} == --unpack ]]; then
  file=${2:?usage: tools/gpu_parcel.sh --unpack FILE FOLDER} folder=${3:?usage: tools/gpu_parcel.sh --unpack FILE FOLDER}
  mkdir -p "$folder"
  tar -xJf "$file" -C "$folder"
  folder=$(cd "$folder" && pwd)
  if [[ -e $folder/build/release/tests/fake_cuda ]]; then
    printf 'cd %q && LD_LIBRARY_PATH=%q tools/gpu_check.sh --rehearse\n' "$folder" "$folder/build/release/lib:${TORCH:-}${TORCH:+/lib}"
  else
    libraries=$(cuda_of)
    printf 'cd %q && LD_LIBRARY_PATH=%q TESSERA_CUDA=%q tools/gpu_check.sh\n' "$folder" "$folder/build/release/lib:$libraries" "$libraries"
  fi
  exit
fi
rehearse=false
if [[ ${1:-} == --rehearse ]]; then
  rehearse=true
  shift
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
to=${1:?usage: tools/gpu_parcel.sh FILE.tar.xz [BUILD]}
build=${2:-build/release}
readonly kMostBytes=$((64 << 20))
needed=("$build/bin/tessera" "$build/bin/devices_test" "$build/lib/libtessera.so")
if $rehearse; then
  needed+=("$build"/tests/fake_cuda/lib{nvml.so,nccl.so.2,torch_cuda.so,tessera_cuda.so})
else
  needed+=("$build/lib/libtessera_cuda.so")
fi
for file in "${needed[@]}"; do
  [[ -e $file ]] || { printf 'gpu_parcel: %s is missing\n  fix: tools/build.sh release tessera_program devices_test %s\n' "$file" "$($rehearse && echo fake_cuda || echo tessera_cuda)" >&2; exit 8; }
done
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
mkdir -p "$box"/{tools,examples/data,share,bench/peers} "$box"/build/release/{bin,lib}
for file in "${needed[@]}"; do
  mkdir -p "$box/build/release/$(dirname "${file#"$build"/}")"
  strip -o "$box/build/release/${file#"$build"/}" "$file"
done
# The libraries of this system, but for those of libc and of the compiler, which the host has, and of libtorch. Names are whole:
# libcrypto does not belong to libc.
ours='ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+|libgomp|libtorch|libtorch_cpu|libc10|libcudart|libcupti|libtessera'
ldd "$build/lib/libtessera.so" "$build/bin/devices_test" | awk '$3 ~ /^\// {print $3}' | sort -u |
  { grep -vE "/($ours)\\.so(\\.|\$)" || true; } | xargs -r cp -Lt "$box/build/release/lib"
cp tools/gpu_check.sh "$box/tools/"
cp bench/peers/gpt2_cuda.py bench/peers/gpt2_layer.py "$box/bench/peers/"
cp examples/data/shakespeare.txt "$box/examples/data/"
cp -r share/. "$box/share/"
tar -C "$box" -cf - . | xz -T0 -6 >"$to"
bytes=$(stat -c %s "$to")
printf '%s: %.1f MiB\n' "$to" "$(awk -v b="$bytes" 'BEGIN {print b / 1048576}')"
((bytes <= kMostBytes)) || { printf 'gpu_parcel: the file is larger than 64 MiB\n  fix: leave devices_test out, or build it there\n' >&2; exit 1; }
