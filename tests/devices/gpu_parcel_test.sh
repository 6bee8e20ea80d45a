#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# timeout: 1200
# The parcel of tools/gpu_parcel.sh: packed, unpacked, and its check rehearsed.   usage: gpu_parcel_test.sh PROGRAM FOLDER
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
build=$(cd "$(dirname "$1")/.." && pwd)
for library in libtorch_cuda.so libtessera_cuda.so libnvml.so; do
  [[ -e $2/$library ]] || { echo "the simulated library $library is not built"; exit 77; }
done

goes_around() {
  tools/gpu_parcel.sh --rehearse "$box/parcel.tar.xz" "$build" >"$box/out" 2>&1 || { cat "$box/out"; exit 1; }
  cat "$box/out"
  local command
  command=$(tools/gpu_parcel.sh --unpack "$box/parcel.tar.xz" "$box/there") || exit 1
  local library
  for library in libcrypto.so.3 libfmt.so libjpeg.so libdnnl.so; do
    expect "$library" compgen -G "$box/there/build/release/lib/$library*"
  done
  for library in libc.so libm.so libstdc++.so libtorch_cpu.so; do
    expect "no $library" test -z "$(compgen -G "$box/there/build/release/lib/$library*")"
  done
  OUT=$box bash -c "$command --short" >"$box/check" 2>&1 || { cat "$box/check"; exit 1; }
}
names_what_is_missing() {
  tools/gpu_parcel.sh "$box/parcel.tar.xz" "$box" >"$box/out" 2>&1
  expect "exit code 8" test $? = 8
  expect "the remedy" says "tools/build.sh release tessera_program devices_test tessera_cuda" "$box/out"
  TORCH=/nowhere tools/gpu_parcel.sh --unpack <(tar -cJf - --files-from /dev/null) "$box/empty" >"$box/out" 2>&1
  expect "exit code 8 without torch" test $? = 8
  expect "libtorch_cuda.so" says "has no libtorch_cuda.so" "$box/out"
}
claim "a parcel is packed, unpacked and used" goes_around
claim "what is missing has its sentence" names_what_is_missing
claims_done
