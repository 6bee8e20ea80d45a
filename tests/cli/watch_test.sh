#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 120
# The page of tessera watch: its address, its token, its numbers; in headless Chromium where it is installed.   usage: watch_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: watch_test.sh PROGRAM}")

# run_of NAME STEPS: a run folder whose loss falls from 4 to 2.
run_of() {
  mkdir -p "$box/$1/logs"
  awk -v n="$2" 'BEGIN { for (i = 1; i <= n; ++i) printf "{\"step\":%d,\"epoch\":0.1,\"loss\":%.4f,\"lr\":0.001,\"samples\":%d,\"tokens_per_s\":1000}\n", i, 4 - 2 * i / n, 8 * i }' >"$box/$1/metrics.jsonl"
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

the_page_needs_its_token() {
  run_of one 20 0.1
  begin_watch "$box/one"
  expect "an address of this host: $url" grep -qE '^http://127\.0\.0\.1:[0-9]+/\?token=[0-9a-f]{32}$' "$box/out"
  fetch "$url" >"$box/page"
  expect "the page" says '<div id="charts"' "$box/page"
  fetch "${url/\?/api/runs?}" >"$box/data"
  expect "its numbers" says '"loss":[3.9' "$box/data"
  expect "no page without the token" bash -c "! python3 -c 'import urllib.request; urllib.request.urlopen(\"${url%%\?*}\")' 2>/dev/null"
  end_watch
  expect "exit code 0, not $code" test "$code" = 0
}

a_million_steps_answer_quickly() {
  run_of long 1000000 0.1
  begin_watch "$box/long"
  local start end
  start=$(date +%s%N)
  fetch "${url/\?/api/runs?}" >"$box/data"
  end=$(date +%s%N)
  expect "few points: $(wc -c <"$box/data") bytes" test "$(wc -c <"$box/data")" -lt 400000
  expect "an answer within a second, not $(((end - start) / 1000000)) ms" test $((end - start)) -lt 3000000000
  end_watch
}

a_page_stands_alone() {
  run_of one 20 0.1
  "$tessera" report "$box/one" --html "$box/one.html"
  expect "its data" says 'window.tesseraRuns = [' "$box/one.html"
  expect "nothing from elsewhere" bash -c "! grep -q 'https\?://' '$box/one.html' || ! grep -o 'https\?://[^\"]*' '$box/one.html' | grep -v w3.org"
}

a_board_is_text() {
  run_of one 20 0.1
  "$tessera" watch "$box/one" --text --once >"$box/out"
  expect "its state" says 'one  finished  step 20' "$box/out"
  expect "its curve" says '█' "$box/out"
}

chromium_draws_curves_and_differences() {
  local browser
  browser=$(command -v chromium) || return 0
  run_of one 50 0.1
  run_of two 50 0.2
  begin_watch "$box/one" "$box/two"
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=4000 --user-data-dir="$box/profile" --dump-dom "$url" >"$box/dom" 2>/dev/null
  end_watch
  expect "a chart of the loss" says 'class="chart" data-name="loss"' "$box/dom"
  expect "a curve of each run" bash -c "grep -o 'data-run=\"two\"' '$box/dom' | grep -q two"
  expect "the difference" says 'optimizer.params.lr' "$box/dom"
  expect "a sample as text" says '&lt;b&gt;bold' "$box/dom"
}

claim "the page needs its token" the_page_needs_its_token
claim "a million steps answer quickly" a_million_steps_answer_quickly
claim "a page stands alone" a_page_stands_alone
claim "a board is text" a_board_is_text
claim "Chromium draws curves and differences" chromium_draws_curves_and_differences
claims_done
