#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Whole runs of the program: training, resuming, comparing, generating, losing a rank.   usage: runs_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: runs_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
# The path of libtorch's cache is linked into the program and does not depend on TESSERA_CACHE.

configure() {
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16, "validation_fraction": 0.1},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
  "optimizer": {"params": {"lr": 1e-3}}, "gradient_clipping": 1.0,
  "trainer": {"max_steps": 12}, "run": {"threads_per_rank": 1},
  "eval": {"every": 6, "batches": 2}, "checkpoint": {"every": 5}
}
EOF
}
# train NAME ARGUMENTS...: trains in $box/NAME; writes the output to $box/out and $box/err, and the exit code to $code.
train() {
  local name=$1
  shift
  timeout 120 "$tessera" train "$box/tiny.json" --set "run.dir=$box/$name" "$@" >"$box/out" 2>"$box/err"
  code=$?
}
state_is() { grep -q "\"state\": \"$1\"" "$2/status.json"; }
none_left() { ! pgrep -f "train $box/tiny.json"; }

ranks_and_accumulation_agree() {
  configure
  train one -n 1 && train two -n 2 && train four -n 4
  expect "exit code 0, not $code" test "$code" = 0
  expect "1 x 4 and 2 x 2 are equal" "$tessera" compare "$box/one" "$box/two"
  expect "2 x 2 and 4 x 1 are equal" "$tessera" compare "$box/two" "$box/four"
}

# last_loss NAME: prints the last loss of a run.
last_loss() { grep '"loss"' "$box/$1/metrics.jsonl" | tail -1 | sed 's/.*"loss":\([0-9.]*\).*/\1/'; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && (a - b) * (a - b) < 1e-8 * a * a) }'; }

ranks_that_share_layers_train_as_one() {
  configure
  train one -n 1
  train tensor -n 4 --set parallel.tensor=2 --set parallel.sequence=true --set zero_optimization.stage=3
  expect "exit code 0, not $code" test "$code" = 0
  expect "the table" says "data parallel 2, tensor parallel 2 (1d, sequence)" "$box/out"
  expect "$(last_loss one) and $(last_loss tensor) are near" near "$(last_loss one)" "$(last_loss tensor)"
  "$tessera" eval "$box/tensor" --json >"$box/eval"
  expect "it is measured" says '"loss":' "$box/eval"
  train one -n 1 --set trainer.max_steps=18
  train tensor -n 1 --set trainer.max_steps=18
  expect "one rank goes on: exit code 0, not $code" test "$code" = 0
  expect "$(last_loss one) and $(last_loss tensor) are near" near "$(last_loss one)" "$(last_loss tensor)"
}

layers_that_cannot_be_shared_are_refused() {
  configure
  train run -n 5 --set parallel.tensor=5
  expect "exit code 2, not $code" test "$code" = 2
  expect "the numbers" says "5 ranks cannot share 4 heads" "$box/err"
  expect "nothing was started" test ! -e "$box/run"
}

a_difference_is_found() {
  configure
  train one -n 1 && train two -n 1 --set optimizer.lr=2e-3
  "$tessera" compare "$box/one" "$box/two" >"$box/difference"
  expect "exit code 1" test $? = 1
}

a_resumed_run_equals_an_undisturbed_one() {
  configure
  train whole -n 2
  # An incomplete line left by a killed process.
  sed -i '3i {"step":3,"lo' "$box/whole/metrics.jsonl"
  train parts -n 2 --set trainer.max_steps=7 --set checkpoint.every=0
  # The schedule is constant, so that raising the number of steps changes nothing else; the uninterrupted run has no
  # evaluation at step 7.
  sed -i '/"step":7,"eval_loss"/d' "$box/parts/metrics.jsonl"
  train parts -n 1
  expect "exit code 0, not $code" test "$code" = 0
  expect "both runs are equal" "$tessera" compare "$box/whole" "$box/parts"
}

a_finished_run_says_so() {
  configure
  train run -n 1
  # The state after a signal in the last step.
  sed -i 's/"finished"/"stopped"/; s/"exit_code": 0/"exit_code": 75/' "$box/run/status.json"
  train run -n 1 --dry-run
  expect "a dry run writes nothing" state_is stopped "$box/run"
  train run -n 1
  expect "exit code 0, not $code" test "$code" = 0
  expect "the words" says "is finished" "$box/out"
  expect "the state" state_is finished "$box/run"
  expect "its code" says '"exit_code": 0' "$box/run/status.json"
}

another_model_is_refused() {
  configure
  train run -n 1
  train run -n 1 --set model.num_layers=3
  expect "exit code 2, not $code" test "$code" = 2
  expect "the difference" says "model.num_layers: 2 -> 3" "$box/err"
  expect "the way on" says "--resume never" "$box/err"
}

# a_lost_rank_ends_the_job ARGUMENTS...: ARGUMENTS are those of the training.
a_lost_rank_ends_the_job() {
  configure
  timeout 120 "$tessera" train "$box/tiny.json" -n 2 --set "run.dir=$box/run" --set trainer.max_steps=1000000 "$@" \
    >"$box/out" 2>"$box/err" &
  local job=$!
  for _ in $(seq 200); do
    [[ -s $box/run/metrics.jsonl && -d $box/run/checkpoints/step-00000005 ]] && break
    sleep 0.1
  done
  # The program below `timeout` is the supervisor; its children are the ranks.
  local supervisor victim before
  supervisor=$(pgrep -P "$job")
  victim=$(pgrep -P "$supervisor" | tail -1)
  before=$(date +%s%N)
  kill -9 "$victim"
  wait "$job"
  code=$?
  expect "exit code 6, not $code" test "$code" = 6
  expect "within 10 s" test $((($(date +%s%N) - before) / 1000000)) -lt 10000
  expect "the rank is named" grep -Eq 'rank [01] was lost' "$box/err"
  expect "the signal is named" says "signal 9" "$box/err"
  expect "the step is named" grep -Eq 'step [0-9]+' "$box/err"
  expect "no process is left" none_left
  expect "the state" state_is failed "$box/run"
  train run -n 2 --set trainer.max_steps=7 "$@"
  expect "a start after it goes on or is finished: code $code" test "$code" = 0
}

# a_stop_is_saved SIGNAL CODE ARGUMENTS...: ARGUMENTS are those of the training.
a_stop_is_saved() {
  configure
  timeout 120 "$tessera" train "$box/tiny.json" -n 2 --set "run.dir=$box/run" --set trainer.max_steps=1000000 "${@:3}" \
    --set checkpoint.every=0 >"$box/out" 2>"$box/err" &
  local job=$!
  for _ in $(seq 200); do
    [[ -s $box/run/metrics.jsonl ]] && break
    sleep 0.1
  done
  local reached=("$(pgrep -P "$job")")
  # Ctrl-C reaches the ranks as well.
  [[ $1 == INT ]] && mapfile -O 1 -t reached < <(pgrep -P "${reached[0]}")
  kill -s "$1" "${reached[@]}"
  wait "$job"
  code=$?
  expect "exit code $2, not $code" test "$code" = "$2"
  expect "a checkpoint" compgen -G "$box/run/checkpoints/step-*"
  expect "the state" state_is stopped "$box/run"
}

a_second_process_is_refused() {
  configure
  mkdir -p "$box/run"
  exec 8>"$box/run/lock"
  flock 8
  train run -n 1
  expect "exit code 8, not $code" test "$code" = 8
  expect "the words" says "is in use by" "$box/err"
}

divergence_names_its_place() {
  configure
  train run -n 2 --set optimizer.lr=1e30 --set gradient_clipping=0
  expect "exit code 7, not $code" test "$code" = 7
  expect "the step" says "diverged at step" "$box/err"
  expect "a remedy that is not an error of its own" grep -q '^  fix: ' "$box/err"
  expect "the rank" grep -Eq 'on rank [01]' "$box/err"
}

a_model_speaks_and_is_measured() {
  configure
  train run -n 1
  "$tessera" generate "$box/run" --prompt "ROMEO:" --max-new-tokens 60 --temperature 0 --echo >"$box/first"
  "$tessera" generate "$box/run" --prompt "ROMEO:" --max-new-tokens 60 --temperature 0 --echo >"$box/second"
  expect "greedy text is the same twice" cmp "$box/first" "$box/second"
  expect "valid UTF-8" iconv -f UTF-8 -t UTF-8 "$box/first" -o /dev/null
  "$tessera" generate "$box/run" --prompt "A" --max-new-tokens 40 --seed 3 --json >"$box/json"
  expect "JSON" says '"tokens":[' "$box/json"
  for weights in bf16 int8; do
    "$tessera" generate "$box/run" --weights $weights --prompt "A" --max-new-tokens 20 --echo >"$box/text" || exit 1
    expect "text out of $weights" grep -q "^A" "$box/text"
  done
  "$tessera" generate "$box/run" --prompt "A" --max-new-tokens 10 --samples 3 >"$box/text"
  expect "three texts" says "--- 3 of 3" "$box/text"
  "$tessera" generate "$box/run" --prompt "A" --weights int8 -n 2 2>"$box/err"
  expect "exit code 2 for int8 on two ranks with whole layers, not $?" test $? = 2
  expect "the remedy" says "use --tensor 2" "$box/err"
  "$tessera" generate "$box/run" --prompt "A" --max-new-tokens 10 --weights int8 --tensor 2 --echo >"$box/text" || exit 1
  expect "text of two ranks out of int8" grep -q "^A" "$box/text"
  "$tessera" generate "$box/run" --prompt "A" --weights fp8 2>"$box/err"
  expect "exit code 2 for fp8, not $?" test $? = 2
  expect "what there is" says "expected fp32, bf16 or int8" "$box/err"
  "$tessera" eval "$box/run" >"$box/eval"
  expect "bits per byte" says "bits per byte" "$box/eval"
  "$tessera" eval "$box/run" --data examples/data/shakespeare.txt --batches 2 --json >"$box/eval"
  expect "perplexity" says '"perplexity":' "$box/eval"
}

# Each rank has only its part of the weights: the text and the loss are identical, with the same number of threads.
several_ranks_read_one_model() {
  configure
  train run -n 2 --set model.hidden_size=512 --set trainer.max_steps=3
  for ranks in 1 2 3; do
    "$tessera" eval "$box/run" -n "$ranks" --threads 1 --batches 5 --json >"$box/eval-$ranks" || exit 1
    "$tessera" generate "$box/run" -n "$ranks" --threads 1 --prompt "ROMEO:" --max-new-tokens 30 --seed 3 --echo \
      >"$box/text-$ranks" || exit 1
    [[ $ranks == 1 ]] && continue
    expect "the loss of $ranks ranks" cmp "$box/eval-1" "$box/eval-$ranks"
    expect "the text of $ranks ranks" cmp "$box/text-1" "$box/text-$ranks"
  done
  expect "the text" says "ROMEO:" "$box/text-3"
  # Ranks that compute each layer in parts add in another order; the likeliest token is the same.
  greedy() { "$tessera" generate "$box/run" --threads 1 --prompt "ROMEO:" --max-new-tokens 30 --temperature 0 --echo "$@"; }
  greedy >"$box/greedy" || exit 1
  for ranks in "--tensor 2" "-n 4 --tensor 2"; do
    # shellcheck disable=SC2086
    greedy $ranks >"$box/text" || exit 1
    expect "the text with $ranks" cmp "$box/greedy" "$box/text"
  done
  greedy -n 2 --tensor 3 2>"$box/err"
  expect "no part of a rank" says "--tensor 3 does not divide 2 ranks" "$box/err"
  greedy --tensor 64 2>"$box/err"
  expect "a head for every rank" says "ranks cannot share" "$box/err"
  "$tessera" eval "$box/none" -n 2 2>"$box/err"
  expect "exit code 4, not $?" test $? = 4
  expect "the name" says "none does not exist" "$box/err"
  "$tessera" generate "$box/run" -n 0 2>"$box/err"
  expect "exit code 2, not $?" test $? = 2
}

a_run_that_saves_nothing_ends_well() {
  configure
  train run -n 2 --set trainer.max_steps=1 --set checkpoint.every=0 --set checkpoint.final=false --set eval.every=0
  expect "exit code 0, not $code" test "$code" = 0
  expect "no checkpoint" bash -c "! compgen -G '$box/run/checkpoints/step-*'"
}

pipelines_agree_with_one_rank() {
  configure
  train one -n 1
  for schedule in 1f1b zb-h1 interleaved; do
    train "$schedule" -n 4 --set parallel.pipeline.size=2 --set "parallel.pipeline.schedule=\"$schedule\""
    expect "exit code 0, not $code" test "$code" = 0
    expect "$schedule gives the same bits" "$tessera" compare "$box/one" "$box/$schedule"
  done
  expect "the table" says "stage 0 (ranks 0-1): wte" "$box/out"
  expect "the rank that it built its part" says "Rank3 build layer " "$box/1f1b/logs/rank_00003.log"
  for run in one 1f1b; do
    "$tessera" eval "$box/$run" --threads 1 --json | sed 's/"model":.*//' >"$box/eval-$run"
    "$tessera" generate "$box/$run" --threads 1 --prompt "ROMEO:" --max-new-tokens 30 --temperature 0 >"$box/text-$run" ||
      exit 1
  done
  expect "a loss" says '"loss":' "$box/eval-one"
  expect "the same loss of what was trained" cmp "$box/eval-one" "$box/eval-1f1b"
  expect "the same words" cmp "$box/text-one" "$box/text-1f1b"
  train 1f1b -n 1 --set trainer.max_steps=14
  expect "one rank goes on: exit code 0, not $code" test "$code" = 0
}

a_pipeline_of_too_many_stages_is_refused() {
  configure
  train run -n 5 --set parallel.pipeline=5
  expect "exit code 2, not $code" test "$code" = 2
  expect "the numbers" says "5 stages need at least 5 blocks, and the model has 4" "$box/err"
  train run -n 3 --set parallel.pipeline=2
  expect "exit code 2, not $code" test "$code" = 2
  expect "the product" says "pipeline 2 x tensor 1 x context 1 = 2" "$box/err"
}

a_dry_run_starts_nothing() {
  configure
  train run -n 2 --dry-run
  expect "exit code 0, not $code" test "$code" = 0
  expect "the table" says "parameters" "$box/out"
  expect "no folder" test ! -e "$box/run"
}

what_a_run_shows() {
  configure
  train run -n 1 --set steps_per_print=1 --set wall_clock_breakdown=true --set memory_breakdown=true
  expect "exit code 0, not $code" test "$code" = 0
  expect "a picture of the losses" grep -q "<svg" "$box/run/loss.svg"
  expect "a line for each of 12 steps" test "$(grep -c '^step ' "$box/out")" = 12
  expect "parts of the time" test "$(grep -c 'forward .* backward .* optimizer' "$box/out")" -ge 12
  expect "parts of the memory" test "$(grep -c 'memory (peak of each) | parameters' "$box/out")" -ge 12
  expect "no live line in a file" test "$(grep -c $'\r' "$box/out")" = 0
}

a_live_line_is_shown() {
  configure
  timeout 120 script -qec "$tessera train $box/tiny.json -n 1 --set run.dir=$box/live" /dev/null >"$box/out" </dev/null
  expect "a live line on a terminal" says "tok/s  ETA " "$box/out"
}

bytes_that_are_no_text_are_not_written() {
  configure
  train run -n 1 --set trainer.max_steps=1
  "$tessera" generate "$box/run" --prompt $'\xff' --echo --max-new-tokens 3 >"$box/text"
  expect "exit code 0, not $?" test $? = 0
  expect "UTF-8" iconv -f utf8 -t utf8 "$box/text"
}

a_body_of_kernels_is_asked_for() {
  TESSERA_ISA=portable "$tessera" report >"$box/out"
  expect "exit code 0, not $?" test $? = 0
  expect "the body" grep -q '^kernels used  *portable ' "$box/out"
}

an_unknown_body_of_kernels_is_refused_first() {
  configure
  export TESSERA_ISA=bogus
  train run -n 2 --dry-run
  expect "exit code 2, not $code" test "$code" = 2
  expect "the word" says "bogus" "$box/err"
  train run -n 2
  expect "exit code 2, not $code" test "$code" = 2
  expect "no rank was started" test ! -e "$box/run/logs"
}

an_unknown_set_of_kernels_is_refused_first() {
  configure
  export TESSERA_KERNELS=bogus
  train run -n 2
  expect "exit code 2, not $code" test "$code" = 2
  expect "the word" says "bogus" "$box/err"
  expect "no rank was started" test ! -e "$box/run/logs"
}

claim "ranks x accumulation 1x4, 2x2 and 4x1 give the same bits" ranks_and_accumulation_agree
claim "ranks that share layers train as one" ranks_that_share_layers_train_as_one
claim "layers that cannot be shared are refused" layers_that_cannot_be_shared_are_refused
claim "compare finds a difference" a_difference_is_found
claim "a resumed run equals an undisturbed one" a_resumed_run_equals_an_undisturbed_one
claim "a finished run says so" a_finished_run_says_so
claim "another model in the same folder is refused" another_model_is_refused
claim "a lost rank ends the job and is named" a_lost_rank_ends_the_job
claim "SIGTERM stops and saves" a_stop_is_saved TERM 75
claim "SIGTERM stops and saves ranks that share layers" a_stop_is_saved TERM 75 --set parallel.tensor=2
claim "a lost rank that shares layers ends the job and is named" a_lost_rank_ends_the_job --set parallel.tensor=2
claim "SIGTERM stops and saves a pipeline" a_stop_is_saved TERM 75 --set parallel.pipeline=2
claim "Ctrl-C stops and saves a pipeline" a_stop_is_saved INT 130 --set parallel.pipeline=2
claim "a lost stage ends the job and is named" a_lost_rank_ends_the_job --set parallel.pipeline=2
claim "pipelines give the bits of one rank" pipelines_agree_with_one_rank
claim "a pipeline that cannot be is refused" a_pipeline_of_too_many_stages_is_refused
claim "a second process on a run folder is refused" a_second_process_is_refused
claim "divergence names step and rank" divergence_names_its_place
claim "a trained model generates and is measured" a_model_speaks_and_is_measured
claim "several ranks read one model" several_ranks_read_one_model
claim "a run that neither saves nor evaluates ends well" a_run_that_saves_nothing_ends_well
claim "a run shows steps, times, memory and a picture" what_a_run_shows
claim_on_a_terminal "a run shows a live line on a terminal" a_live_line_is_shown
claim "a prompt that is not text comes back as text" bytes_that_are_no_text_are_not_written
claim "tessera report shows the body of the kernels that TESSERA_ISA asks for" a_body_of_kernels_is_asked_for
claim "an unknown TESSERA_ISA is refused before a rank starts" an_unknown_body_of_kernels_is_refused_first
claim "an unknown TESSERA_KERNELS is refused before a rank starts" an_unknown_set_of_kernels_is_refused_first
claim "a dry run starts nothing" a_dry_run_starts_nothing
claims_done
