#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# Conversations through a pipe and on a terminal, files of prompts that continue after an interruption, and scores.   usage: chat_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: chat_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

base=$(mktemp -d)
trap 'rm -rf -- "$base"' EXIT
for i in $(seq 60); do echo "text number $i, of its own"; done >"$base/train.txt"
cat >"$base/run.json" <<EOF
{
  "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "dropout": 0},
  "data": {"sequence_length": 32, "train": ["$base/train.txt"]},
  "train_batch_size": 4, "trainer": {"max_steps": 2},
  "run": {"threads_per_rank": 1, "dir": "$base/run"}, "checkpoint": {"every": 0}
}
EOF
timeout 120 "$tessera" train "$base/run.json" -n 1 >"$base/out" 2>"$base/err" || { cat "$base/err" && exit 1; }
printf '%s' "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}" >"$base/chat.jinja"

printf '{"prompt": "a"}\n{"prompt": "text"}\n{"prompt": "number 3"}\n' >"$base/in.jsonl"

a_model_without_a_template_is_refused_with_the_remedy() {
  ! "$tessera" chat "$base/run" </dev/null 2>"$box/err" || return 1
  grep -q "has no chat template" "$box/err" && grep -q -- "--template" "$box/err"
}

a_conversation_keeps_its_history_until_reset() {
  printf 'hello\n/reset\nhello\nhello\n/quit\nnever\n' |
    "$tessera" chat "$base/run" --template "$base/chat.jinja" --temperature 0 --max-new-tokens 6 --ignore-eos \
      --system "Be brief." >"$box/said" || return 1
  # The same question after /reset is answered as at first; the answers are those of `generate` with the rendered prompt.
  "$tessera" generate "$base/run" --temperature 0 --max-new-tokens 6 --ignore-eos \
    --prompt "[system]Be brief.[user]hello[assistant]" >"$box/first" || return 1
  cmp <(head -c "$(stat -c %s "$box/first")" "$box/said") "$box/first"
}

ranks_that_compute_layers_together_hold_a_conversation() {
  local how=(--template "$base/chat.jinja" --temperature 0 --max-new-tokens 6 --ignore-eos --threads 1) count
  # One line has a character of several bytes, one is not valid, one is empty, and the last one has no end.
  for count in 1 2; do
    printf 'hello\nn\xc3\xa4\n\xff\n\n/reset\nhello' |
      "$tessera" chat "$base/run" "${how[@]}" --tensor $count >"$box/said.$count" 2>"$box/err.$count" || { cat "$box"/err.* && return 1; }
  done
  [[ $(wc -l <"$box/said.1") -ge 3 ]] && cmp "$box/said.1" "$box/said.2" || return 1
  [[ $(grep -c "not valid UTF-8" "$box/err.2") == 1 ]]
}

progress_of_a_file_is_shown_on_a_terminal() {
  python3 - "$tessera" "$base/run" "$base/in.jsonl" "$box/out.jsonl" <<'PY'
import os, pty, re, sys
program, run, prompts, out = sys.argv[1:]
def shown():
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
        os.execv(program, [program, "generate", run, "--prompts", prompts, "--out", out, "--temperature", "0",
                           "--max-new-tokens", "5", "--ignore-eos", "--threads", "1", "--batch-size", "1"])
    seen = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the program has ended
            break
        if not piece:
            break
        seen += piece
    assert os.waitpid(child, 0)[1] == 0, seen
    speeds = re.findall(rb"(\d) of (\d) prompts, ([0-9.]+) tokens/s, (\S+) left", seen)
    last = re.search(rb"(\d) texts in \S+, ([0-9.]+) tokens/s(.*)", seen)
    assert last and float(last[2]) > 0 and all(float(one[2]) > 0 for one in speeds), seen
    return [one[:2] for one in speeds], speeds[-1][3] if speeds else b"", last[3].strip()
def expect(found, wanted):
    assert found == wanted, (found, wanted)
expect(shown(), ([(b"1", b"3"), (b"2", b"3"), (b"3", b"3")], b"0ms", b""))
with open(out) as file:
    first = file.readline()
with open(out, "w") as file:
    file.write(first)
expect(shown(), ([(b"2", b"3"), (b"3", b"3")], b"0ms", b", those of 1 prompts from before"))
PY
}

a_file_of_prompts_goes_on_after_an_interruption() {
  local how=(--temperature 0 --max-new-tokens 5 --threads 1 --repetition-penalty 1.3)
  # The lines of a file are those of the prompts: a blank one stays.
  printf '{"prompt": "a", "id": 7}\n\n{"prompt": "text"}\n{"text": "x", "prompt": "number 3"}\n\n' >"$box/in.jsonl"
  "$tessera" generate "$base/run" --prompts "$box/in.jsonl" --out "$box/whole.jsonl" "${how[@]}" >"$box/out" || return 1
  { head -n 2 "$box/whole.jsonl" && sed -n 3p "$box/whole.jsonl" | head -c 20; } >"$box/cut.jsonl"
  "$tessera" generate "$base/run" --prompts "$box/in.jsonl" --out "$box/cut.jsonl" "${how[@]}" >"$box/out" || return 1
  cmp "$box/whole.jsonl" "$box/cut.jsonl" && [[ $(grep -n '^$' "$box/whole.jsonl" | xargs) == "2: 5:" ]] || return 1
  # The other members of a prompt's line are in the line of its text.
  [[ $(head -n 1 "$box/whole.jsonl") == *'"id":7}' && $(sed -n 4p "$box/whole.jsonl") == *'"given_text":"x"}' ]]
}

texts_of_a_file_do_not_depend_on_how_many_are_made_together() {
  local how=(--temperature 1.5 --max-new-tokens 12 --threads 1) count
  for count in 1 2 8; do
    "$tessera" generate "$base/run" --prompts "$base/in.jsonl" --out "$box/$count.jsonl" "${how[@]}" --seed 4 --samples 2 \
      --batch-size $count >"$box/out" || return 1
  done
  cmp "$box/1.jsonl" "$box/2.jsonl" && cmp "$box/1.jsonl" "$box/8.jsonl" || return 1
  # Each text is that of its prompt and seed alone.
  "$tessera" generate "$base/run" --prompt text "${how[@]}" --seed 5 --json >"$box/alone" || return 1
  python3 - "$box/8.jsonl" "$box/alone" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [len(line["samples"]) for line in lines] == [2, 2, 2], lines
assert lines[1]["samples"][1]["tokens"] == json.load(open(sys.argv[2]))["tokens"]
PY
}

lines_are_edited_and_remembered_on_a_terminal() {
  # The template tells what it was given, in place of an answer.
  printf '%s' "{{ raise_exception('read <' ~ messages[-1].content ~ '>') }}" >"$box/tell.jinja"
  python3 - "$tessera" "$base/run" "$box/tell.jinja" <<'PY'
import os, pty, select, sys, termios, time
program, run, template = sys.argv[1:]
child, terminal = pty.fork()
if child == 0:
    os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
    os.execv(program, [program, "chat", run, "--template", template])
seen = b""
def expect(wanted, count=1):
    global seen
    end = time.time() + 60
    while seen.count(wanted) < count:
        assert time.time() < end, (wanted, count, seen)
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096)
def type_line(line):
    # The prompt is printed before the terminal passes single characters on.
    end = time.time() + 60
    while termios.tcgetattr(terminal)[3] & termios.ICANON:
        assert time.time() < end, seen
        time.sleep(0.01)
    os.write(terminal, line)
expect(b"> ")
type_line(b"helXo\x1b[D\x7fl\r")  # a step to the left, and the X is replaced
expect(b"read <hello>")
type_line("n\u00e4\u00f6\x7fu\r".encode())  # the last character goes, not its last byte
expect("read <n\u00e4u>".encode())
type_line(b"\x1b[A\x1b[A\r")  # two arrows up: the first line
expect(b"read <hello>", 2)
type_line(b"/quit\r")
status = os.waitpid(child, 0)[1]
assert status == 0, (status, seen)
PY
}

a_file_of_other_prompts_is_refused() {
  printf '{"prompt": "b", "text": ""}\n' >"$box/other.jsonl"
  ! "$tessera" generate "$base/run" --prompts "$base/in.jsonl" --out "$box/other.jsonl" 2>"$box/err" || return 1
  grep -q "choose another --out" "$box/err"
}

texts_are_those_of_the_command_that_made_the_file() {
  local how=(--prompts "$base/in.jsonl" --out "$box/out.jsonl" --ignore-eos --threads 1 --temperature 0)
  "$tessera" generate "$base/run" "${how[@]}" --max-new-tokens 3 -q || return 1
  cp "$box/out.jsonl" "$box/three.jsonl"
  # A finished file is not an answer to another command.
  "$tessera" generate "$base/run" "${how[@]}" --max-new-tokens 4 -q || return 1
  ! cmp -s "$box/out.jsonl" "$box/three.jsonl" || return 1
  "$tessera" generate "$base/run" "${how[@]}" --max-new-tokens 3 -q && cmp "$box/out.jsonl" "$box/three.jsonl" || return 1
  [[ ! -e $box/out.jsonl.progress ]] || return 1
  # Nor is an interrupted one.
  echo 0123456789abcdef >"$box/out.jsonl.progress"
  ! "$tessera" generate "$base/run" "${how[@]}" --max-new-tokens 3 2>"$box/err" || return 1
  grep -q "was begun with another model" "$box/err" && cmp "$box/out.jsonl" "$box/three.jsonl" || return 1
  # A command that is refused does not remove an incomplete line of another one.
  printf '{"prompt": "' | cat "$box/three.jsonl" - >"$box/part.jsonl" && cp "$box/part.jsonl" "$box/out.jsonl"
  ! "$tessera" generate "$base/run" "${how[@]}" --max-new-tokens 3 2>"$box/err" || return 1
  cmp "$box/out.jsonl" "$box/part.jsonl" || return 1
  ! "$tessera" score "$base/run" "$box/part.jsonl" --out "$box/part.jsonl" 2>"$box/err" || return 1
  grep -q "is the file that is read" "$box/err" && cmp "$box/out.jsonl" "$box/part.jsonl" || return 1
  cp "$base/in.jsonl" "$box/in.jsonl"
  ! "$tessera" generate "$base/run" --prompts "$box/in.jsonl" --out "$box/in.jsonl" 2>"$box/err" || return 1
  grep -q "is the file that is read" "$box/err" && cmp "$base/in.jsonl" "$box/in.jsonl"
}

contradictory_options_are_refused() {
  ! "$tessera" generate "$base/run" --beams 2 --top-k 3 2>"$box/err" || return 1
  ! "$tessera" generate "$base/run" --return 2 2>"$box/err" || return 1
  ! "$tessera" generate "$base/run" --length-penalty 2 2>"$box/err" || return 1
  ! "$tessera" generate "$base/run" --min-new-tokens 9 --max-new-tokens 3 2>"$box/err" || return 1
  ! "$tessera" generate "$base/run" --temperature 0 --min-p 0.1 2>"$box/err"
}

a_text_ends_before_a_stop_string() {
  local how=(--max-new-tokens 60 --ignore-eos --threads 1 --seed 3 --prompt "text" --json)
  "$tessera" generate "$base/run" "${how[@]}" >"$box/all" || return 1
  # An untrained model also produces bytes that are not characters; the stop string is a letter that occurs.
  local stop
  stop=$(python3 -c "import json; print(next(c for c in json.load(open('$box/all'))['text'][1:] if c.isascii() and c.isalpha()))")
  "$tessera" generate "$base/run" "${how[@]}" --stop "$stop" >"$box/stopped" || return 1
  python3 - "$box/all" "$box/stopped" "$stop" <<'PY'
import json, sys
whole, cut = (json.load(open(name)) for name in sys.argv[1:3])
assert cut["text"] == whole["text"].split(sys.argv[3])[0], (whole["text"], cut["text"], sys.argv[3])
assert cut["ended"] and len(cut["tokens"]) < len(whole["tokens"])
PY
  # With two beams, each text is free of the string or ends before it.
  how=(--max-new-tokens 26 --ignore-eos --threads 1 --no-repeat-ngram 1 --prompt "text" --json --beams 2 --return 2)
  "$tessera" generate "$base/run" "${how[@]}" >"$box/all" || return 1
  stop=$(python3 -c "import json; print(next(c for c in json.load(open('$box/all'))['beams'][0]['text'][1:] if c.isascii() and c.isprintable() and c != ' '))")
  "$tessera" generate "$base/run" "${how[@]}" --stop "$stop" >"$box/stopped" || return 1
  python3 - "$box/stopped" "$stop" <<'PY'
import json, sys
beams = json.load(open(sys.argv[1]))["beams"]
assert len(beams) == 2 and any(beam["ended"] for beam in beams), beams
assert not any(sys.argv[2] in beam["text"] for beam in beams), (beams, sys.argv[2])
PY
}

scores_agree_with_each_other() {
  printf 'text number 1\nother\n' >"$box/lines.txt"
  "$tessera" score "$base/run" "$box/lines.txt" --tokens --threads 1 >"$box/scores" || return 1
  python3 - "$box/scores" <<'PY'
import json, math, sys
*lines, last = [json.loads(line) for line in open(sys.argv[1])]
assert len(lines) == 2 and last["lines"] == 2
for one in lines:
    assert abs(sum(one["token_log_probabilities"]) - one["log_probability"]) < 1e-9
    assert len(one["token_log_probabilities"]) == one["tokens"]
assert abs(sum(one["log_probability"] for one in lines) - last["log_probability"]) < 1e-9
assert abs(math.exp(-last["log_probability"] / last["tokens"]) - last["perplexity"]) < 1e-6
PY
}

eight_bit_weights_are_divided_over_ranks() {
  printf 'text number 1\nother\n' >"$box/lines.txt"
  local count
  for count in 1 2; do
    local how=(--weights int8 --tensor $count --threads 1)
    "$tessera" score "$base/run" "$box/lines.txt" "${how[@]}" >"$box/scores.$count" 2>"$box/err" || { cat "$box/err" && return 1; }
    echo "hello" | "$tessera" chat "$base/run" --template "$base/chat.jinja" --temperature 0 --max-new-tokens 6 --ignore-eos "${how[@]}" \
      >"$box/said.$count" 2>"$box/err" || { cat "$box/err" && return 1; }
    [[ -s $box/said.$count ]] || return 1
  done
  "$tessera" score "$base/run" "$box/lines.txt" --threads 1 >"$box/scores.fp32" || return 1
  # The ranks have the same 8-bit weights and round other sums to bf16.
  python3 - "$box/scores.fp32" "$box/scores.1" "$box/scores.2" <<'PY'
import json, sys
exact, one, two = [json.loads(open(name).readlines()[-1])["perplexity"] for name in sys.argv[1:]]
assert abs(one / exact - 1) < 0.05 and one != exact, (exact, one)
assert abs(two / one - 1) < 0.02, (one, two)
PY
}

a_folder_is_greedy_unless_something_says_otherwise() {
  "$tessera" convert "$base/run" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && return 1; }
  local how=(generate "$box/hf" --prompt text --max-new-tokens 12 --ignore-eos --threads 1)
  "$tessera" "${how[@]}" --temperature 0 >"$box/greedy" && "$tessera" "${how[@]}" --temperature 1 >"$box/drawn" &&
    "$tessera" "${how[@]}" >"$box/plain" && "$tessera" "${how[@]}" --seed 1234 >"$box/seed" || return 1
  cmp "$box/plain" "$box/greedy" && cmp "$box/seed" "$box/drawn" && ! cmp -s "$box/greedy" "$box/drawn" || return 1
  rm -f "$box/hf/generation_config.json"
  "$tessera" "${how[@]}" >"$box/plain" && cmp "$box/plain" "$box/greedy" || return 1
  echo '{"do_sample": true}' >"$box/hf/generation_config.json"
  "$tessera" "${how[@]}" >"$box/plain" && cmp "$box/plain" "$box/drawn"
}

the_template_of_a_gguf_file_is_used() {
  # GGUF has no name for the byte tokenizer.
  timeout 120 "$tessera" train "$base/run.json" -n 1 --set tokenizer.type=gpt2 --set "run.dir=$box/run" >"$box/out" 2>&1 &&
    "$tessera" convert "$box/run" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && return 1; }
  cp "$base/chat.jinja" "$box/hf/chat_template.jinja"
  "$tessera" convert "$box/hf" "$box/model.gguf" >"$box/out" 2>&1 || { cat "$box/out" && return 1; }
  echo "hello" | "$tessera" chat "$box/model.gguf" --temperature 0 --max-new-tokens 6 --ignore-eos >"$box/one" 2>"$box/err" ||
    { cat "$box/err" && return 1; }
  echo "hello" | "$tessera" chat "$box/hf" --temperature 0 --max-new-tokens 6 --ignore-eos >"$box/two" 2>"$box/err" ||
    { cat "$box/err" && return 1; }
  expect "the folder's answer" cmp "$box/one" "$box/two"
}

keys_that_are_not_applied_are_named() {
  "$tessera" convert "$base/run" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && return 1; }
  local how=("$box/hf" --prompt text --temperature 0 --max-new-tokens 2 --threads 1)
  echo '{"num_beams": 1, "bad_words_ids": [], "min_length": 0, "repetition_penalty": 1.1}' >"$box/hf/generation_config.json"
  "$tessera" generate "${how[@]}" >"$box/out" 2>"$box/err" && ! grep -q "not applied" "$box/err" || return 1
  echo '{"num_beams": 4, "bad_words_ids": [[5]], "min_length": 0}' >"$box/hf/generation_config.json"
  "$tessera" generate "${how[@]}" >"$box/out" 2>"$box/err" || return 1
  grep -q '"num_beams" (see --beams), "bad_words_ids"' "$box/err" && ! grep -q min_length "$box/err"
}

claim "a model without a template is refused, with the remedy" a_model_without_a_template_is_refused_with_the_remedy
claim "a conversation keeps its history until /reset" a_conversation_keeps_its_history_until_reset
claim "ranks that compute layers together hold a conversation" ranks_that_compute_layers_together_hold_a_conversation
claim_on_a_terminal "progress of a file is shown on a terminal" progress_of_a_file_is_shown_on_a_terminal
claim "a file of prompts continues after an interruption" a_file_of_prompts_goes_on_after_an_interruption
claim "texts of a file do not depend on how many are made together" texts_of_a_file_do_not_depend_on_how_many_are_made_together
claim_on_a_terminal "lines are edited and remembered on a terminal" lines_are_edited_and_remembered_on_a_terminal
claim "a file of other prompts is refused" a_file_of_other_prompts_is_refused
claim "texts of a file are those of the command that made it" texts_are_those_of_the_command_that_made_the_file
claim "contradictory options are refused" contradictory_options_are_refused
claim "a text ends before a stop string" a_text_ends_before_a_stop_string
claim "scores agree with each other" scores_agree_with_each_other
claim "8-bit weights are divided over ranks" eight_bit_weights_are_divided_over_ranks
claim "a folder is greedy unless something says otherwise" a_folder_is_greedy_unless_something_says_otherwise
claim "keys of generation_config.json that are not applied are named" keys_that_are_not_applied_are_named
claim "the template of a GGUF file is used" the_template_of_a_gguf_file_is_used
claims_done
