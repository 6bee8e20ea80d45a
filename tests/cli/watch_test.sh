#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 120
# The page of tessera watch: its address, its token, its numbers; and the board.   usage: watch_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/watched.sh"
tessera=$(realpath "${1:?usage: watch_test.sh PROGRAM}")

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
  expect "an answer within three seconds on a busy machine, not $(((end - start) / 1000000)) ms" test $((end - start)) -lt 3000000000
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
  expect "no ranks of a run without them" bash -c "! grep -q ranks '$box/out'"
  ranks_of one
  "$tessera" watch "$box/one" --text --once >"$box/out"
  expect "its ranks" says '2 ranks | mem 4.0 MiB to 5.0 MiB | stages wait 30%, 12%' "$box/out"
}

claim "the page needs its token" the_page_needs_its_token
claim "a million steps answer quickly" a_million_steps_answer_quickly
claim "a page is self-contained" a_page_stands_alone
claim "a board is text" a_board_is_text
claims_done
