#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# timeout: 2400
# Every reader of external files is fuzzed for a minute. Skipped without clang++.
exec nice fuzz/run.sh 60
