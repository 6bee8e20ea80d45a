#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# Decisions of ./quickstart, tested with stand-ins for set-up, build and program.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# A clone whose set-up and build do nothing and whose program records how it was called. On `train` it writes the files
# that a real run leaves, in the state that $STATE names.
stand_in_clone() {
  clone=$box/clone
  mkdir -p "$clone/tools" "$clone/examples/data"
  cp "$repository/quickstart" "$clone/"
  echo "to be" >"$clone/examples/data/shakespeare.txt"
  shim "$clone/tools" setup.sh 'exit 0'
  shim "$clone/tools" build.sh 'exit 0'
  shim "$clone/build/release/bin" tessera '
    [[ $1 == train ]] || exit 0
    for word; do
      case $word in run.dir=*) dir=${word#run.dir=\"}; dir=${dir%\"};; data.train=*) data=${word#data.train=};; esac
    done
    mkdir -p "$dir"
    echo "{\"state\": \"${STATE:-finished}\", \"exit_code\": ${CODE:-0}}" >"$dir/status.json"
    echo "{\"data\": {\"train\": $data}}" >"$dir/config.json"
    : >"$dir/lock"
    exit ${CODE:-0}'
  calls=$clone/build/release/bin/calls
  shim "$clone/tools" fetch_model.sh 'echo /cache/model.gguf'
}

run_of_call() { grep '^tessera train' "$calls" | sed -n "$1s/.*run.dir=\"\([^\"]*\)\".*/\1/p"; }

fresh_every_time() {
  stand_in_clone

  "$clone/quickstart" && "$clone/quickstart"

  expect "the first run" test "$(run_of_call 1)" = runs/quickstart-1
  expect "the second run" test "$(run_of_call 2)" = runs/quickstart-2
}

interrupted_goes_on() {
  stand_in_clone

  STATE=stopped CODE=130 "$clone/quickstart"
  local code=$?
  "$clone/quickstart" && "$clone/quickstart"

  expect "the program's exit code, not $code" test $code = 130
  expect "it goes on" test "$(run_of_call 2)" = runs/quickstart-1
  expect "and afresh when it is finished" test "$(run_of_call 3)" = runs/quickstart-2
}

killed_goes_on() {
  stand_in_clone

  STATE=failed CODE=6 "$clone/quickstart"
  "$clone/quickstart"

  expect "it goes on after a lost rank" test "$(run_of_call 2)" = runs/quickstart-1
}

failed_or_other_text_is_not_gone_on_with() {
  stand_in_clone
  echo "not to be" >"$box/other.txt"

  STATE=failed CODE=7 "$clone/quickstart"
  STATE=stopped CODE=130 "$clone/quickstart"
  "$clone/quickstart" "$box/other.txt"

  expect "not on with a failed one" test "$(run_of_call 2)" = runs/quickstart-2
  expect "not on with another text" test "$(run_of_call 3)" = runs/quickstart-3
}

running_is_left_alone() {
  stand_in_clone
  STATE=running CODE=130 "$clone/quickstart"

  exec 7>"$clone/runs/quickstart-1/lock"
  flock 7
  "$clone/quickstart"

  expect "another run while one holds its lock" test "$(run_of_call 2)" = runs/quickstart-2
}

batch_fits_the_ranks() {
  stand_in_clone

  "$clone/quickstart" -n 4 >"$box/four"
  "$clone/quickstart" -n 5 >"$box/five"

  expect "12 on 4 ranks" says "-n 4 --set data.train=\"$clone/examples/data/shakespeare.txt\" --set run.dir=\"runs/quickstart-1\" --set train_batch_size=12" "$calls"
  expect "15 on 5 ranks" says "train_batch_size=15" "$calls"
  expect "and says so" says "5 ranks do not divide the batch of 12 sequences" "$box/five"
}

misuse_is_refused_before_anything_else() {
  stand_in_clone
  local arguments
  for arguments in "-n 0" "-n two" "-n" "--fast" "/does/not/exist" "README.md README.md"; do
    # shellcheck disable=SC2086  # several words
    "$clone/quickstart" $arguments 2>"$box/err"
    local code=$?
    expect "exit code 2 for $arguments, not $code" test $code = 2
    expect "a remedy for $arguments" says "fix: " "$box/err"
  done
  expect "set-up has not begun" test ! -e "$clone/tools/calls"
}

awkward_paths() {
  stand_in_clone
  mkdir "$box/it's a \"text\""
  echo "to be" >"$box/it's a \"text\"/a b.txt"

  (cd "$box/it's a \"text\"" && "$clone/quickstart" "a b.txt") >"$box/out"

  expect "a JSON string" says 'it'"'"'s a \"text\"/a b.txt"' "$calls"
  expect "commands for where the user stands" says "$clone/bin/tessera generate $clone/runs/quickstart-1" "$box/out"
}

chat_talks_with_the_model_that_is_fetched() {
  stand_in_clone

  "$clone/quickstart" --chat </dev/null >"$box/out"

  expect "the model" says "chat /cache/model.gguf --weights bf16" "$calls"
  expect "the question, without a terminal" says "> What is a mosaic?" "$box/out"
  expect "no training" test -z "$(run_of_call 1)"
  "$clone/quickstart" --chat "$clone/quickstart" 2>"$box/err"
  local code=$?
  expect "a text beside it is refused, not $code" test $code = 2
  expect "with a remedy" says "fix: ./quickstart --chat" "$box/err"
}

claim "every call takes a fresh run" fresh_every_time
claim "an interrupted run continues, a finished one does not" interrupted_goes_on
claim "a run that lost a rank continues" killed_goes_on
claim "a failed run or one on another text is not gone on with" failed_or_other_text_is_not_gone_on_with
claim "a run that is going on now is left alone" running_is_left_alone
claim "the batch fits the ranks, and a change of it is said" batch_fits_the_ranks
claim "misuse exits 2 with a remedy before set-up begins" misuse_is_refused_before_anything_else
claim "spaces and quotes in a path survive, and commands can be pasted elsewhere" awkward_paths
claim "--chat talks with the model that is fetched" chat_talks_with_the_model_that_is_fetched
claims_done
