# SPDX-License-Identifier: Apache-2.0
# Compiles the CUDA kernels, their emulation and tests/ops/cuda/mutants/check.cpp with the C++ compiler. To be sourced.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kernel_folder=$root/tessera/ops/cuda
kernels=(rows exact paged_attention sampler updates pointwise reduce_parts)

# compile_kernel SOURCE OBJECT FLAGS...
compile_kernel() {
  "${CXX:-c++}" -std=c++20 -fPIC -ffp-contract=off -I"$root" -I"$root/tests" -include "$root/tests/ops/cuda/emulation.h" -w "${@:3}" \
    -x c++ -c "$1" -o "$2"
}
# compile_check FOLDER FLAGS...: an object for each kernel, check.o and emulation.o; two at a time. The emulation has the flags of
# the array of_emulation, if it is set.
compile_check() {
  local folder=$1 name jobs=() flags=("${@:2}") job
  [[ -z ${of_emulation:-} ]] || flags=("${of_emulation[@]}")
  compile_kernel "$root/tests/ops/cuda/emulation.cpp" "$folder/emulation.o" "${flags[@]}" || return 1
  for name in check "${kernels[@]}"; do
    if [[ $name == check ]]; then
      compile_kernel "$root/tests/ops/cuda/mutants/check.cpp" "$folder/check.o" "${@:2}" &
    else
      compile_kernel "$kernel_folder/$name.cu" "$folder/$name.o" "${@:2}" &
    fi
    jobs+=($!)
    ((${#jobs[@]} < 2)) || { wait "${jobs[0]}" || return 1; jobs=("${jobs[@]:1}"); }
  done
  for job in "${jobs[@]}"; do wait "$job" || return 1; done
}
