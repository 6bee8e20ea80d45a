#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 120
# What headless Chromium makes of the page of tessera watch.   usage: watch_browser_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/watched.sh"
tessera=$(realpath "${1:?usage: watch_browser_test.sh PROGRAM}")
browser=$(command -v chromium) || exit 77

chromium_draws_curves_and_differences() {
  run_of one 50 0.1
  run_of two 50 0.2
  begin_watch "$box/one" "$box/two"
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=4000 --user-data-dir="$box/profile" --dump-dom "$url" >"$box/dom" 2>/dev/null
  end_watch
  expect "a chart of the loss" says 'class="chart" data-name="loss"' "$box/dom"
  expect "a curve of each run" bash -c "grep -o 'data-run=\"two\"' '$box/dom' | grep -q two"
  expect "the difference" says 'optimizer.params.lr' "$box/dom"
  expect "the parts of a step's time" says '<th>run</th><th>step</th><th>data</th><th>forward</th><th>collectives, within these</th>' "$box/dom"
  expect "their values" says '<td>90</td><td>1.500</td><td>31.25</td><td>7</td>' "$box/dom"
  expect "a sample as text" says '&lt;b&gt;bold' "$box/dom"
}

claim "Chromium draws curves and differences" chromium_draws_curves_and_differences
claims_done
