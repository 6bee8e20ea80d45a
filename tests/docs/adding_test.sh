#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 600
# The code on the pages of docs/adding/ compiles unchanged, all pages as one file; adding_pages_test.sh compiles each page alone.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/pages.sh"

claim "the code of all pages compiles" compiles "${pages[@]}"
claims_done
