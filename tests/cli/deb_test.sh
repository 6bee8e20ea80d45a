#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# timeout: 1800
# The Debian package works without the source tree and its caches.   usage: deb_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
built=$(dirname "$(dirname "${1:?usage: deb_test.sh PROGRAM}")")
text=$PWD/examples/data/shakespeare.txt
for needed in dpkg-deb dpkg-shlibdeps; do
  command -v "$needed" >/dev/null || exit 77
done

an_unpacked_package_trains() {
  python3 tools/deb.py "$built" "$box" --uncompressed >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
  local root=$box/root
  dpkg-deb -x "$box"/tessera-train_*.deb "$root"
  dpkg-deb -f "$box"/tessera-train_*.deb Depends >"$box/depends"
  expect "a dependency on Debian's libraries" says "libfmt" "$box/depends"
  expect "none on libtorch" test "$(grep -c torch "$box/depends")" = 0
  expect "the manual" says ".TH TESSERA 1" <(gzip -dc "$root/usr/share/man/man1/tessera.1.gz")
  expect "completion" says "tessera" "$root/usr/share/bash-completion/completions/tessera"
  expect "no folder of the machine that built it" test "$(grep -rlF "$PWD" "$root/usr/lib/cmake" "$root"/usr/lib/tessera-train/lib/cmake | wc -l)" = 0
  cd "$box" || exit 1
  cat >tiny.json <<EOF
{"model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2}, "tokenizer": {"type": "gpt2"},
 "data": {"train": "$text", "sequence_length": 8}, "train_batch_size": 2, "trainer": {"max_steps": 1}}
EOF
  # Without a home folder, there is no other libtorch to find.
  env -u TESSERA_CACHE -u XDG_CACHE_HOME -u LD_LIBRARY_PATH HOME="$box/home" "$root/usr/bin/tessera" train tiny.json -n 1 \
    >"$box/out" 2>&1
  expect "exit code 0, not $?" test $? = 0
  expect "a step" says "step 1/1" "$box/out"
  for library in libtorch_cpu.so libdnnl.so.3; do
    expect "$library of the package" says "$root" <(ldd "$root"/usr/lib/tessera-train/lib/libtessera.so | grep "$library")
  done
}

# As it is uploaded: compressed. Debian's checker reads all libraries for some minutes.
no_error_of_lintian() {
  python3 tools/deb.py "$built" "$box" >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
  lintian --no-cfg --allow-root --show-overrides --fail-on error,warning "$box"/tessera-train_*.deb >"$box/out" 2>&1 ||
    { cat "$box/out"; return 1; }
  expect "nothing is overridden" test "$(grep -c '^O:' "$box/out")" = 0
}

claim "an unpacked Debian package trains with its own libtorch" an_unpacked_package_trains
if command -v lintian >/dev/null; then
  claim "lintian finds no error in the package" no_error_of_lintian
else
  echo 'skipped lintian, which is not installed: apt-get install lintian'
fi
claims_done
