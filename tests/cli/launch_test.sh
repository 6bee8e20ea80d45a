#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tessera launch starts a program as the ranks of one job and ends all of them when one fails.   usage: launch_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=$(readlink -f "${1:?usage: launch_test.sh PROGRAM}")
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID

every_rank_gets_its_variables_and_the_words_of_the_script() {
  printf '#!/bin/sh\necho "$RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE: $* $MASTER_ADDR" >"$OUT/$RANK"\necho "$TORCHELASTIC_RUN_ID $MASTER_PORT" >"$OUT/job$RANK"\n' >"$box/s.sh"
  chmod +x "$box/s.sh"
  OUT=$box "$program" launch -n 3 "$box/s.sh" --lr 1 -n 7 || return 1
  for rank in 0 1 2; do
    expect "the variables of rank $rank" test "$(cat "$box/$rank")" = "$rank of 3, local $rank of 3: --lr 1 -n 7 127.0.0.1"
    expect "one job" cmp "$box/job0" "$box/job$rank"
  done
}

a_python_script_runs_in_the_named_python() {
  printf '#!/bin/sh\necho "python of $1" >"$OUT"\n' >"$box/py"
  chmod +x "$box/py"
  OUT=$box/out TESSERA_PYTHON=$box/py "$program" launch "$box/t.py" || return 1
  expect "the named Python" says "python of $box/t.py" "$box/out"
}

a_rank_that_fails_ends_the_job_with_its_code() {
  printf '#!/bin/sh\n[ "$RANK" = 1 ] && exit 5\nexec sleep 1\n' >"$box/s.sh"
  chmod +x "$box/s.sh"
  "$program" launch -n 2 "$box/s.sh" 2>"$box/err"
  expect "its exit code" test $? -eq 5
  expect "which rank" says "rank 1 ended with exit code 5" "$box/err"
}

signals_reach_every_rank() {
  printf '#!/bin/sh\ntrap "echo stopped >$OUT/stopped$RANK; exit 0" TERM\ntouch $OUT/ready$RANK\nwhile :; do sleep 0.05; done\n' >"$box/s.sh"
  chmod +x "$box/s.sh"
  OUT=$box "$program" launch -n 2 "$box/s.sh" &
  local job=$!
  until_true test -e "$box/ready0" -a -e "$box/ready1" || return 1
  kill -TERM "$job"
  wait "$job"
  expect "both were told" test -e "$box/stopped0" -a -e "$box/stopped1"
}

mistakes_are_said() {
  "$program" launch -n 0 true 2>"$box/err"
  expect "exit code 2" test $? -eq 2
  expect "the number" says "-n 0" "$box/err"
  "$program" launch -n 2 2>"$box/err"
  expect "exit code 2 without a script" test $? -eq 2
  "$program" launch "$box/none" 2>"$box/err"
  expect "exit code 8" test $? -eq 8
  expect "the script" says "$box/none" "$box/err"
}

claim "every rank gets its variables and the words of the script" every_rank_gets_its_variables_and_the_words_of_the_script
claim "a Python script runs in the Python that TESSERA_PYTHON names" a_python_script_runs_in_the_named_python
claim "a rank that fails ends the job with its exit code" a_rank_that_fails_ends_the_job_with_its_code
claim "SIGTERM reaches every rank" signals_reach_every_rank
claim "mistakes are said" mistakes_are_said
claims_done
