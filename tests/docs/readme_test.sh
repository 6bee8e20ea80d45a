#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# The program accepts the commands and files that the README and the examples show.   usage: readme_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$1
cd "$repository" || exit 1
export TESSERA_CACHE=${TESSERA_CACHE:-$(dirname "$(tools/setup.sh --where)")}

dry_run() {  # dry_run CONFIG [FLAGS...]: the configuration parses and gives a plan
  local code=0
  timeout 60 "$program" train "$@" --dry-run >"$box/out" 2>&1 || code=$?
  [[ $code == 0 ]] || { echo "exit code $code of: train $* --dry-run"; cat "$box/out"; exit 1; }
}

example_configurations() {
  local config count=0
  for config in examples/configs/*.json; do
    dry_run "$config" --set "run.dir=\"$box/run\""
    timeout 100 "$program" train "$config" -n 2 --set "run.dir=\"$box/$count\"" --set trainer.max_steps=2 \
      --set eval.every=1 --set eval.batches=1 >"$box/out" 2>&1 || { echo "$config"; cat "$box/out"; exit 1; }
    expect "$config was trained" test "$(grep -c '"lr"' "$box/$count/metrics.jsonl")" = 2
    count=$((count + 1))
  done
  expect "there are configurations" test $count -gt 0
}

# Writes each ```json block of README.md into a file.
readme_configurations() {
  awk -v to="$box/readme" '/^```json$/ {n++; inside = 1; next} /^```$/ {inside = 0} inside {print > (to n ".json")}' README.md
  local config count=0
  for config in "$box"/readme*.json; do
    [[ -e $config ]] || continue
    dry_run "$config" --set "run.dir=\"$box/run\""
    count=$((count + 1))
  done
  expect "there are configurations" test $count -gt 0
}

# Runs the lines of ```sh blocks in README.md that call the program. A configuration that the README itself shows is the
# first JSON block; any other configuration file must exist.
readme_commands() {
  awk '/^```sh$/ {inside = 1; next} /^```$/ {inside = 0} inside' README.md | sed -n 's/^\$ //p' >"$box/commands"
  awk '/^```json$/ {n++; inside = 1; next} /^```$/ {inside = 0} inside && n == 1' README.md >"$box/tiny.json"
  local line count=0
  while IFS= read -r line; do
    line=${line%%#*}
    [[ $line == bin/tessera* ]] || continue
    eval "set -- ${line#bin/tessera}"
    local command=$1
    shift
    if [[ $command == train ]]; then
      local config=$1
      shift
      [[ -e $config ]] || config=$box/$config
      dry_run "$config" "$@" --set "run.dir=\"$box/run\""
    else
      expect "a command that exists: $command" "$program" "$command" --help
    fi
    count=$((count + 1))
  done <"$box/commands"
  expect "there are commands" test $count -gt 0
}

linked_files() {
  local file target
  for file in README.md CONTRIBUTING.md docs/*.md docs/*/*.md; do
    while IFS= read -r target; do
      expect "$file links $target" test -e "$(dirname "$file")/${target%%#*}"
    done < <(grep -oE '\]\([^)#: ]+[^): ]*\)' "$file" | sed -E 's/^\]\(//; s/\)$//' | grep -v '^http')
  done
}

claim "the configurations in examples/configs are accepted" example_configurations
claim "the configurations in the README are accepted" readme_configurations
claim "the commands in the README are understood" readme_commands
claim "every file that the documents link exists" linked_files
claims_done
