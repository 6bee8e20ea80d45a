#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: wide
# timeout: 600
# The code on each page of docs/adding/ compiles alone, and so includes what it uses.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/pages.sh"

for page in "${pages[@]}"; do claim "the code of $(basename "$page") compiles" compiles "$page"; done
claims_done
