#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# timeout: 60
# The examples in examples/rlhf are configurations that would train, and the answers of their tasks are right.
# usage: rlhf_examples_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: rlhf_examples_test.sh PROGRAM}")
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples" && pwd)
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

checks() { "$tessera" "$@" --dry-run >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }; }

tasks_have_right_answers() {
  "$examples/rlhf/make_tasks.py" 60 >"$box/tasks.jsonl"
  "$examples/rlhf/make_tasks.py" 60 2 >"$box/held_out.jsonl"
  expect "answers that a second calculation gives" python3 - "$box/tasks.jsonl" "$box/held_out.jsonl" <<'PY'
import json, re, sys
train, held_out = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert len(train) == len(held_out) == 60 and train != held_out
assert {record["task"] for record in train} == {"total", "letters", "sequence"}
for record in train + held_out:
    question = record["messages"][0]["content"].split(" Answer with")[0]
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    if record["task"] == "total":
        answer = sum(numbers)
    elif record["task"] == "letters":
        letter, word = re.findall(r'"(\w+)"', question)
        answer = len([one for one in word if one == letter])
    else:
        answer = 2 * numbers[-1] - numbers[-2]
    assert record["answer"] == str(answer), record
PY
  # The example's own model has to be fetched; a small one without weights stands in for it.
  checks train "$examples/rlhf/smollm2.json" --set 'model={"family": "llama", "num_layers": 1, "hidden_size": 32, "num_heads": 2}' \
    --set "data.train=$box/tasks.jsonl" --set "data.validation=$box/held_out.jsonl" --set data.sequence_length=256 \
    --set rl.chat_template=chatml --set "run.dir=$box/run"
  expect "its adapter is planned" says "adapter: " "$box/out"
}
three_steps_are_planned() {
  "$examples/rlhf/make_pairs.py" "$examples/data/shakespeare.txt" 60 >"$box/pairs.jsonl"
  checks rlhf "$examples/rlhf/chat.json" --set "dir=$box/chat" --set "common.data.train=$box/pairs.jsonl"
  expect "the first step" says "step 1 of 3: sft" "$box/out"
  checks rlhf "$examples/rlhf/chat.json" --set "dir=$box/chat" --set "common.data.train=$box/pairs.jsonl" --step 2 \
    --set 'reward.model={"from": null, "family": "llama", "num_layers": 1, "hidden_size": 32, "num_heads": 2}'
  expect "the second step" says "step 2 of 3: reward" "$box/out"
  expect "nothing was written" test ! -e "$box/chat"
  # Files of the first step alone are learned besides its part of the records, and by no other step.
  for name in more others; do "$examples/rlhf/make_pairs.py" "$examples/data/shakespeare.txt" 40 >"$box/$name.jsonl"; done
  local split=(rlhf "$examples/rlhf/chat.json" --set "dir=$box/chat" --set "common.data.train=$box/pairs.jsonl" --data_split 8,1,1)
  checks "${split[@]}" --sft_only_data_path "$box/more.jsonl" "$box/others.jsonl" --step 1
  expect "the files of the first step" grep -qE "^data .*/part-1.jsonl and 2 more: " "$box/out"
  checks "${split[@]}" --set "sft_only=$box/more.jsonl" --set common.train_batch_size=1 --set common.train_micro_batch_size_per_gpu=1 --step 2 \
    --set 'reward.model={"from": null, "family": "llama", "num_layers": 1, "hidden_size": 32, "num_heads": 2}'
  expect "not of the second" grep -qE "^data .*/part-2.jsonl: " "$box/out"
}
hosts_match_their_word() {
  refuses() {
    if "$tessera" rlhf "$examples/rlhf/chat.json" "${@:2}" --dry-run >"$box/out" 2>&1; then echo "accepted: $*" && exit 1; fi
    expect "a refusal that says $1" says "$1" "$box/out"
  }
  refuses "single_gpu with several ranks" --deployment-type single_gpu -n 2
  refuses "multi_node without hosts" --deployment-type multi_node
  refuses "single_node with --hostfile" --deployment-type single_node --hostfile hosts
  refuses "unknown --deployment-type multi_nodes" --deployment-type multi_nodes
  refuses "started by hand" --node_rank 0 --hostfile hosts
}
claim "the questions of the examples have right answers, and can be learned" tasks_have_right_answers
claim "the three steps of the example are planned" three_steps_are_planned
claim "the word for the ranks must match hosts and ranks" hosts_match_their_word
claims_done
