#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Milliseconds to read a command of another program, without the start of the process.
# usage: bench/run_commands.sh [BUILD=build/release]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bench=$(realpath "${1:-build/release}/bin/command_bench")
box=$(mktemp -d)
trap 'rm -rf -- "$box"' EXIT
cd "$box"
"$bench"
