#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# The site of the documents builds without a broken link. Needs mkdocs-material.   usage: site_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
command -v mkdocs >/dev/null || PATH=$PWD/build/site-environment/bin:$PATH
command -v mkdocs >/dev/null || exit 77

builds() {
  NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --site-dir "$box/site" >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
  expect "the first page" says "Five first tasks" "$box/site/index.html"
  expect "a page in Chinese" test -s "$box/site/zh/start/pretrain/index.html"
  expect "an index to search in" test -s "$box/site/search/search_index.json"
  expect "nothing that a browser fetches elsewhere" test "$(grep -rlE '(src|href)="https?://[^"]*\.(js|css|woff2?)"' "$box/site" --include='*.html' | wc -l)" = 0
}

claim "the site of the documents builds without a broken link" builds
claims_done
