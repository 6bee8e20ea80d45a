#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# Set-up installs the CUDA libraries only when asked, in their places, with empty ones for those that nothing calls.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
setup=$root/tools/setup.sh
all_installed='shift 2; for p; do echo "installed $p"; done'
cuda_parts=(torch/lib/{libtorch_cuda.so,libc10_cuda.so,libtorch_nvshmem.so} torch/version.py
  nvidia/cu13/lib/{libcublas.so.13,libcublasLt.so.13,libcufft.so.12} nvidia/cudnn/lib/libcudnn.so.9 nvidia/nccl/lib/libnccl.so.2
  nvidia/nvshmem/lib/libnvshmem_host.so.3)

put() {  # put FOLDER PARTS...: empty files
  local part
  for part in "${@:2}"; do mkdir -p "$1/$(dirname "$part")" && : >"$1/$part"; done
}
fill_cache() {
  put "$box/cache/libtorch-2.11.0" torch/lib/{libc10.so,libtorch_cpu.so,libgomp.so.1} nvidia/cu13/lib/{libcudart.so.13,libcupti.so.13} \
    torch/include/{ATen/ATen.h,c10/core/TensorImpl.h,torch/csrc/autograd/custom_function.h} onednn/lib/libdnnl.so.3 onednn/include/oneapi/dnnl/dnnl.hpp
  shim "$box/shims" dpkg-query "$all_installed"
}
run_setup() {
  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL=http://127.0.0.1:9/simple \
    "$setup" "$@" >"$box/out" 2>"$box/err"
}

nothing_unasked() {
  fill_cache
  run_setup || exit 1
  expect "no CUDA without --cuda" test ! -e "$box/cache/libtorch-2.11.0-cuda"
  expect "nothing to say" test ! -s "$box/out"
}
nothing_missing() {
  fill_cache
  put "$box/cache/libtorch-2.11.0-cuda" "${cuda_parts[@]}"
  run_setup --cuda || exit 1
  expect "nothing to say" test ! -s "$box/out"
  run_setup --cuda --full
  expect "empty libraries are not the full set" test $? = 8
}
offline() {
  fill_cache
  run_setup --cuda
  expect "exit code 8" test $? = 8
  expect "size and free disk first" says "MB free there" "$box/out"
  expect "the missing thing" says "libtorch 2.11.0 with CUDA" "$box/err"
  expect "the command" says "run: tools/setup.sh --cuda" "$box/err"
  expect "its folder" says "copy the folder libtorch-2.11.0-cuda" "$box/err"
  expect "nothing half-made" test -z "$(find "$box/cache" -mindepth 1 -maxdepth 1 -not -name '*.lock' -not -name libtorch-2.11.0)"
}
unknown_flag() {
  run_setup --cuda --half
  expect "exit code 2" test $? = 2
}
unpacks() {
  mkdir "$box/wheels"
  python3 - "$box/wheels" "$1" <<'PY'
import sys, zipfile
folder, lacking = sys.argv[1:]
def wheel(name, *files):
    with zipfile.ZipFile(f"{folder}/{name}.whl", "w") as out:
        for file in files:
            if file != lacking: out.writestr(file, file)
wheel("torch", "torch/lib/libtorch_cuda.so", "torch/lib/libc10_cuda.so", "torch/lib/libtorch_nvshmem.so", "torch/version.py",
      "torch/lib/libtorch_cpu.so", "torch/include/ATen/ATen.h")
wheel("cublas", "nvidia/cu13/lib/libcublas.so.13", "nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cu13/include/cublas.h")
wheel("cudnn", "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn/lib/libcudnn_ops.so.9", "nvidia/cudnn/../../../tmp/lib/libevil.so")
wheel("nccl", "nvidia/nccl/lib/libnccl.so.2")
PY
  python3 "$root/tools/unpack_cuda.py" "$box/wheels" "$box/to" >"$box/out" 2>&1
}
unpacks_in_place() {
  unpacks "" || { cat "$box/out"; exit 1; }
  local part
  for part in "${cuda_parts[@]}"; do expect "$part" test -e "$box/to/$part"; done
  expect "no headers, and not the libraries of the other entry" test -z "$(find "$box/to" -name '*.h' -o -name libtorch_cpu.so -o -name 'libevil*')"
  expect "an empty library loads under its name" python3 -c "import ctypes; ctypes.CDLL('$box/to/nvidia/cu13/lib/libcusparse.so.12')"
  expect "its name" test "$(readelf -d "$box/to/nvidia/cu13/lib/libcusparse.so.12" | grep -c 'soname: \[libcusparse.so.12\]')" = 1
  expect "real libraries stay" test "$(cat "$box/to/nvidia/nccl/lib/libnccl.so.2")" = nvidia/nccl/lib/libnccl.so.2
}
names_what_lacks() {
  unpacks nvidia/nccl/lib/libnccl.so.2 && exit 1
  expect "the name" says "the wheels lack nvidia/nccl/lib/libnccl.so.2" "$box/out"
}

claim "CUDA is not installed unasked" nothing_unasked
claim "what is there is not fetched again" nothing_missing
claim "without network it says what is missing" offline
claim "an unknown flag is refused" unknown_flag
claim "libraries are unpacked in their places" unpacks_in_place
claim "a wheel that lacks a library is named" names_what_lacks
claims_done
