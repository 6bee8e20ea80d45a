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
# ranks_of NAME: gives a run the table of two ranks, each a stage.
ranks_of() {
  cat >"$box/$1/ranks.json" <<'END'
{"step": 40, "mesh": "pp 2 x dp 1 x cp 1 x tp 1", "schedule": "1f1b", "planned_waits": 0.2,
 "stages": [{"stage": "0 (rank 0): wte to h.1; 10 parameters", "waits": 0.3}, {"stage": "1 (rank 1): h.2 to head; 9 parameters", "waits": 0.125}],
 "planned": {"parameters": 1048576, "activations": 2097152},
 "ranks": [{"rank": 0, "host": 0, "pp": 0, "dp": 0, "cp": 0, "tp": 0, "step_ms": 90, "collectives": 0.4, "waits": 0.3, "resident_bytes": 7340032, "peak_bytes": 5242880, "memory": {"parameters": 1048576, "activations": 3145728}},
           {"rank": 1, "host": 0, "pp": 1, "dp": 0, "cp": 0, "tp": 0, "step_ms": 90, "collectives": 0.2, "waits": 0.125, "resident_bytes": 6291456, "peak_bytes": 4194304, "memory": {"parameters": 524288, "activations": 1048576}}]}
END
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
