# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For tests written in bash: `claim TEXT FUNCTION ARGUMENTS...` runs a function in a subshell with a fresh folder in
# $box; `expect TEXT CONDITION...` fails the claim. `claim_on_a_terminal` skips a claim where no terminal can be opened. End the
# file with `claims_done`.
set -uo pipefail
failed=0

claim() {
  local box
  box=$(mktemp -d)
  if ("${@:2}") >"$box/.log" 2>&1; then
    printf 'ok      %s\n' "$1"
  else
    printf 'FAILED  %s\n' "$1"
    sed 's/^/        /' "$box/.log"
    failed=1
  fi
  rm -rf -- "$box"
}

claim_on_a_terminal() {
  if python3 -c 'import os; os.openpty()' 2>/dev/null; then
    claim "$@"
  else
    printf 'skipped %s: no terminal can be opened here: /dev/pts is missing or full\n' "$1"
  fi
}

expect() {
  local what=$1
  shift
  "$@" || { printf 'expected: %s\n' "$what"; exit 1; }
}

says() { grep -qF -- "$1" "$2" || { printf 'this does not say "%s":\n' "$1"; cat "$2"; return 1; }; }

# until_true CONDITION...: repeats the condition until it is true, for about a minute.
until_true() {
  local i
  for ((i = 0; i < 6000; ++i)); do
    "$@" && return 0
    sleep 0.01
  done
  return 1
}

# shim FOLDER NAME [BODY]: a program that stands in for a real one and records its call in FOLDER/calls.
shim() {
  mkdir -p "$1"
  printf '#!/bin/bash\nprintf "%%s\\n" "%s $*" >>"%s/calls"\n%s\n' "$2" "$1" "${3:-exit 99}" >"$1/$2"
  chmod +x "$1/$2"
}

claims_done() { exit "$failed"; }
