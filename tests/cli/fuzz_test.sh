#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# timeout: 2400
# Every reader of files from outside, fuzzed for a minute. Skipped where there is no clang++.
exec nice fuzz/run.sh 60
