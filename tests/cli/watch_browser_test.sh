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
  ranks_of two
  begin_watch "$box/one" "$box/two"
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=4000 --user-data-dir="$box/profile" --dump-dom "$url" >"$box/dom" 2>/dev/null
  end_watch
  expect "a chart of the loss" says 'class="chart" data-name="loss"' "$box/dom"
  expect "a curve of each run" bash -c "grep -o 'data-run=\"two\"' '$box/dom' | grep -q two"
  expect "the difference" says 'optimizer.params.lr' "$box/dom"
  expect "the parts of a step's time" says '<th>run</th><th>step</th><th>data</th><th>forward</th><th>collectives, within these</th>' "$box/dom"
  expect "their values" says '<td>90</td><td>1.500</td><td>31.25</td><td>7</td>' "$box/dom"
  expect "memory by kind and rank" says '<td>1</td><td><div class="stack" aria-hidden="true"><div title="parameters" style="background:#4c78a8;width:12.5%"></div><div title="activations" style="background:#f58518;width:25%"></div></div></td><td>4.00 MiB</td><td>6.00 MiB</td><td>512 KiB</td><td>1.00 MiB</td>' "$box/dom"
  expect "the planned memory above it" says '<td>planned</td>' "$box/dom"
  expect "stages with their waits" says '<td>1 (rank 1): h.2 to head; 9 parameters</td><td><div class="stack" aria-hidden="true"><div title="waits" style="background:#e45756;width:12.5%"></div></div></td><td>12.5 %</td>' "$box/dom"
  expect "the mesh" says 'pp 2 x dp 1 x cp 1 x tp 1' "$box/dom"
  expect "nothing of a run without these numbers" bash -c "! grep -q 'one, step .*: peak of each kind' '$box/dom'"
  expect "a sample as text" says '&lt;b&gt;bold' "$box/dom"
}

claim "Chromium draws curves and differences" chromium_draws_curves_and_differences
claims_done
