#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 900
# Faults that are planted into the CUDA kernels are found in their emulation.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/cuda_check.sh"
shared=$(mktemp -d)
trap 'rm -rf "$shared"' EXIT
compile_check "$shared" -O1 || { echo "the check does not compile"; exit 1; }

# run FILE OBJECT: the exit code of the check with that object in place of the one of its name; 2 if it cannot be linked or takes
# too long, which finds no fault.
run() {
  local objects=() name code=0
  for name in check emulation "${kernels[@]}"; do
    if [[ $name == "$1" ]]; then objects+=("$2"); else objects+=("$shared/$name.o"); fi
  done
  "${CXX:-c++}" "${objects[@]}" -o "$box/check" || return 2
  timeout 120 "$box/check" || code=$?
  ((code != 124)) || code=2
  return "$code"
}
right() { run none none; }
# mutate FROM TO OLD NEW: replaces OLD, which must be there, once.
mutate() {
  python3 - "$@" <<'PY' || exit 1
import sys
source, to, old, new = sys.argv[1:]
text = open(source).read()
if old not in text: sys.exit(f"{source} has no {old!r}")
open(to, "w").write(text.replace(old, new, 1))
PY
}
# is_found KERNEL SOURCE FLAGS...: the check fails with that source of the kernel.
is_found() {
  compile_kernel "$2" "$box/$1.o" -O1 "${@:3}" || exit 1
  local code=0
  run "$1" "$box/$1.o" || code=$?
  # 1: a result is wrong; 3: the emulation refuses the kernel; from 128 on: it is ended by a signal.
  expect "the fault is found, not exit code $code" test $((code == 1 || code == 3 || code >= 128)) = 1
}
# caught KERNEL OLD NEW: a replacement in its source.
caught() {
  mutate "$kernel_folder/$1.cu" "$box/$1.cu" "$2" "$3"
  is_found "$1" "$box/$1.cu"
}
# caught_in_header HEADER KERNEL OLD NEW: one in a header that the kernel includes.
caught_in_header() {
  mkdir -p "$box/tessera/ops/cuda"
  cp "$kernel_folder/$2.cu" "$box"
  mutate "$kernel_folder/$1.h" "$box/tessera/ops/cuda/$1.h" "$3" "$4"
  is_found "$2" "$box/$2.cu" -iquote "$box"
}

claim "without a fault everything agrees" right
claim "no barrier before shared memory is used again" caught rows "__syncthreads();  // the values of an earlier call have been read" ""
claim "no barrier after it is written" caught rows "parts[threadIdx.x / kWarpSize] = value;
  __syncthreads();" "parts[threadIdx.x / kWarpSize] = value;"
claim "no barrier before the gradient takes the logits' place" caught rows \
  "__syncthreads();  // the label's logit has been read; the gradient may take its place" ""
claim "one element too far" caught rows "c < a.channels; c += step) {
    const float g = load(dy + c, Lane{}) * a.weight[c];
    const float d" "c <= a.channels; c += step) {
    const float g = load(dy + c, Lane{}) * a.weight[c];
    const float d"
claim "a lost row of a part" caught rows "for (i64 row = first; row < end; ++row) {" "for (i64 row = first + 1; row < end; ++row) {"
claim "a shuffle too few" caught exact "for (int by = kLanes / 2; by > 0; by /= 2)" "for (int by = kLanes / 2; by > 1; by /= 2)"
claim "two numbers of a byte exchanged" caught exact "byte = byte * 16U + place;" "byte = byte + place * 16U;"
claim "a wrong sign" caught exact "second * cosine + first * sine" "second * cosine - first * sine"
claim "an early return before a shuffle" caught exact "float pair[2] = {};" "if (at >= numel) return; float pair[2] = {};"
claim "no barrier before the warps are added" caught paged_attention "  __syncthreads();
  float top = largests[0];" "  float top = largests[0];"
claim "a key that no warp takes" caught paged_attention "key += kPagedWarps" "key += kPagedWarps + 1"
claim "sums of different scales" caught paged_attention "total = total * keep + weight;" "total = total + weight;"
claim "no barrier before the first thread reads" caught sampler "undefined[thread] = bad;
  __syncthreads();" "undefined[thread] = bad;"
claim "no barrier before parts are used again" caught sampler "__syncthreads();  // earlier parts have been read" ""
claim "a part that is not added" caught reduce_parts "for (i64 part = 1; part < count; ++part)" "for (i64 part = 2; part < count; ++part)"
claim "an element of a rank in another order" caught reduce_parts "How::of(Element::get(to + at), result)" "How::of(result, result)"
claim "a lane of sixteen that is not added" caught updates "for (int half = kSums / 2; half > 0; half /= 2)" "for (int half = kSums / 4; half > 0; half /= 2)"
claim "the same random number for each sample" caught_in_header dropout pointwise "a.sample_ids[row]" "a.sample_ids[0]"
claim "the same random numbers for each row of a norm" caught rows "dropped(a.drop, start + c, add)" "dropped(a.drop, c, add)"
claim "the whole gradient for a dropped branch" caught rows "dropped(a.drop, start + c, load(dx + c, Lane{}))" "load(dx + c, Lane{})"
claims_done
