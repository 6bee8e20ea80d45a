#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# Set-up unpacked all of libtorch: it finds the libraries that it links in the cache, not elsewhere on this machine.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
where=$("$(dirname "${BASH_SOURCE[0]}")/../../tools/setup.sh" --where)

resolves_inside() {
  env -u LD_LIBRARY_PATH ldd "$where/torch/lib/libtorch_cpu.so" >"$box/ldd"
  for library in libc10.so libgomp.so.1 libcudart.so.13 libcupti.so.13; do
    # Looking at the path and not only for "not found": a CUDA toolkit in /usr/local would mask a missing one.
    local path
    path=$(sed -n "s|^\s*$library => \([^ ]*\) .*|\1|p" "$box/ldd")
    expect "$library comes from $where, not from ${path:-nowhere}" test "${path#"$where"/}" != "$path"
  done
  expect "nothing is missing" test -z "$(grep 'not found' "$box/ldd")"
}

no_foreign_headers() {
  expect "only libtorch's own headers: fmt's would shadow Debian's" \
    test "$(cd "$where/torch/include" && echo *)" = "ATen c10 caffe2 sleef.h torch"
}

claim "libtorch's libraries are found inside the cache" resolves_inside
claim "the include folder carries libtorch's headers only" no_foreign_headers
claims_done
