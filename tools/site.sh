#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the site of the documents in build/site, with search; a broken link is an error.   usage: tools/site.sh [serve]
#
# mkdocs-material comes from PyPI into a virtual environment in the build folder. `serve` shows the site at 127.0.0.1:8000.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
environment=build/site-environment
if ! command -v mkdocs >/dev/null; then
  if [[ ! -x $environment/bin/mkdocs ]]; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet mkdocs-material==9.8.2 jieba==0.42.1
  fi
  PATH=$PWD/$environment/bin:$PATH
fi
export NO_MKDOCS_2_WARNING=1
case ${1:-build} in
  build) mkdocs build --quiet && echo "build/site/index.html" ;;
  serve) mkdocs serve --dev-addr 127.0.0.1:8000 ;;
  *) sed -n '3,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
