#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# timeout: 3000
# The CUDA kernels in their emulation under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, for which each CUDA
# thread is a thread: without a report, and with one for planted faults.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/cuda_check.sh"
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int main() {}' >"$probe/probe.cpp"
for flag in address thread; do
  "${CXX:-c++}" -fsanitize=$flag "$probe/probe.cpp" -o "$probe/probe" 2>/dev/null && "$probe/probe" ||
    { echo "the compiler has no -fsanitize=$flag that works here"; exit 77; }
done
memory=(-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all)
threads=(-O1 -g1 -fsanitize=thread)

link_and_run() {  # link_and_run FOLDER FLAG OBJECTS...
  "${CXX:-c++}" "$2" "${@:3}" -o "$box/check" || exit 1
  TSAN_OPTIONS=halt_on_error=1:exitcode=66 ASAN_OPTIONS=exitcode=66 timeout 900 "$box/check" >"$box/out" 2>&1
}
clean() {  # clean FOLDER FLAG
  link_and_run "$1" "$2" "$1"/*.o || { head -n 60 "$box/out"; exit 1; }
}
# reported FOLDER FLAG SENTENCE FILE OLD NEW COMPILER FLAGS...: the sanitizer reports the file with OLD replaced by NEW.
reported() {
  python3 - "$kernel_folder/$4.cu" "$box/$4.cu" "$5" "$6" <<'PY' || exit 1
import sys
source, to, old, new = sys.argv[1:]
text = open(source).read()
if old not in text: sys.exit(f"{source} has no {old!r}")
open(to, "w").write(text.replace(old, new, 1))
PY
  compile_kernel "$box/$4.cu" "$box/$4.o" "${@:7}" || exit 1
  local code=0 objects=() object
  for object in "$1"/*.o; do
    if [[ $object == "$1/$4.o" ]]; then objects+=("$box/$4.o"); else objects+=("$object"); fi
  done
  link_and_run "$1" "$2" "${objects[@]}" || code=$?
  expect "exit code 66, not $code" test "$code" = 66
  expect "$3" says "$3" "$box/out"
}

mkdir "$probe/memory" "$probe/threads"
compile_check "$probe/memory" "${memory[@]}" || exit 1
of_emulation=(-O1 -DTESSERA_EMULATION_TSAN)
compile_check "$probe/threads" "${threads[@]}" || exit 1
claim "AddressSanitizer and UndefinedBehaviorSanitizer find nothing" clean "$probe/memory" -fsanitize=address,undefined
claim "ThreadSanitizer finds nothing" clean "$probe/threads" -fsanitize=thread
claim "an element too far is reported" reported "$probe/memory" -fsanitize=address,undefined "heap-buffer-overflow" reduce_parts \
  "part < count; ++part" "part <= count; ++part" "${memory[@]}"
claim "a missing barrier is reported" reported "$probe/threads" -fsanitize=thread "data race" sampler \
  "__syncthreads();  // earlier parts have been read" "" "${threads[@]}"
claim "two blocks that write the same place are reported" reported "$probe/threads" -fsanitize=thread "data race" reduce_parts \
  "Element::put(to + at, result);" "Element::put(to + at % 256, result);" "${threads[@]}"
claims_done
