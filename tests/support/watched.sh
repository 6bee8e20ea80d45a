# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For tests of tessera watch: run folders to look at, and the page while it is served. $tessera is the program.

# run_of NAME STEPS RATE: a run folder whose loss falls from 4 to 2.
run_of() {
  mkdir -p "$box/$1/logs"
  awk -v n="$2" 'BEGIN { for (i = 1; i <= n; ++i) printf "{\"step\":%d,\"epoch\":0.1,\"loss\":%.4f,\"lr\":0.001,\"samples\":%d,\"tokens_per_s\":1000,\"step_ms\":90,\"data_ms\":1.5,\"forward_ms\":31.25,\"comm_ms\":7}\n", i, 4 - 2 * i / n, 8 * i }' >"$box/$1/metrics.jsonl"
  echo '{"state": "finished", "step": 9, "exit_code": 0, "message": ""}' >"$box/$1/status.json"
  echo '{"optimizer": {"params": {"lr": '"$3"'}}}' >"$box/$1/config.json"
  printf '{"step":9,"prompt":"a","text":"<b>bold</b> & more"}\n' >"$box/$1/samples.jsonl"
}
# fetch URL: the body of an answer.
fetch() { python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())' "$1"; }

begin_watch() {
  "$tessera" watch "$@" >"$box/out" 2>"$box/err" &
  watch=$!
  for _ in $(seq 200); do grep -q '^http' "$box/out" && break; sleep 0.1; done
  url=$(head -1 "$box/out")
}
end_watch() { kill -TERM "$watch"; wait "$watch"; code=$?; }
