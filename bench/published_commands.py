#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts how many published commands of other programs tessera reads and would start.

The commands are read from clones of the programs' repositories, which are not part of tessera:
  bench/published_commands.py [--tessera build/release/bin/tessera] axolotl=CLONE llamafactory=CLONE trl=CLONE
    torchtitan=CLONE megatron=CLONE megatron_deepspeed=CLONE deepspeed_chat=CLONE
The names of models and data sets in them are looked for in TESSERA_MODELS and TESSERA_DATA: give
folders with small stand-ins, OWNER/MODEL with a config.json of the same model_type, and
OWNER/DATA/train.jsonl. Files that Megatron-LM's and DeepSpeed's commands name are replaced by those
in the folder --stand: vocab.json, merges.txt, bert-vocab.txt, spm.model, tiktoken.json,
text_document.bin and .idx (long enough for samples of 32,000 tokens, all below 60), text_sentence.bin
and .idx (with a sequence for each sentence of a document, for BERT and T5), ds.json. Shell scripts are
expanded by a restricted bash without programs. Each command is read with --dry-run. For each program the
number of commands, of those without an unknown option, of those that start and of those that would with
more memory, and the reasons of the others.
"""
import argparse
import collections
import math
import os
import pathlib
import re
import shlex
import subprocess

DOCUMENTS = ("README.md", "docs/source/*.md", "examples/scripts/*.py", "trl/scripts/*.py", "examples/scripts/*/*.py")
SCRIPTS = r"\b(trl (sft|dpo|kto|grpo|rloo|reward)|(sft|dpo|kto|grpo|gspo|rloo|reward_modeling|ppo|ppo_tldr|orpo|cpo|bco|gkd)\.py)\b"


def files(clone, pattern):
    return sorted(str(file.relative_to(clone)) for file in clone.glob(pattern))


def axolotl(clone):
    for file in files(clone, "examples/**/*.y*ml"):
        if re.search(r"^base_model:", (clone / file).read_text(), re.M):
            yield ["axolotl", "train", file]


def llamafactory(clone):
    for file in files(clone, "examples/**/*.yaml"):
        if re.search(r"^stage:", (clone / file).read_text(), re.M):
            yield ["llamafactory-cli", "train", file]


def torchtitan(clone):
    for file in files(clone, "torchtitan/models/*/train_configs/*.toml"):
        if "/flux/" not in file:  # pictures, with a script of their own
            yield ["torchrun", "--nproc_per_node=8", "-m", "torchtitan.train", "--job.config_file", file]


def trl(clone):
    """Command lines in documents and at the head of scripts, with their continued lines."""
    found = set()
    for pattern in DOCUMENTS:
        for file in files(clone, pattern):
            text = re.sub(r"\\\n", " ", (clone / file).read_text())
            for line in re.findall(r"^\s*(?:\$ )?((?:trl|accelerate launch|python3?) .*)$", text, re.M):
                if re.search(SCRIPTS, line) and "$" not in line and "..." not in line and "vlm" not in line:
                    found.add(" ".join(line.split()))
    for line in sorted(found):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # prose
        if "--config" not in words or (clone / words[words.index("--config") + 1]).exists():
            yield words  # other files of settings are printed in the documents only


STAND = pathlib.Path("stand")
STAND_INS = {"vocab-file": "vocab.json", "merge-file": "merges.txt", "data-path": "text_document",
             "tokenizer-model": "spm.model", "deepspeed_config": "ds.json", "deepspeed-config": "ds.json"}


def with_stand_ins(words):
    """The words, in which files that an option names are those of the folder --stand."""
    out = []
    for word in words:
        name, _, value = word.partition("=")
        out += [name, value] if name.lstrip("-") in STAND_INS and value else [word]
    pairs = any("bert" in word or "t5" in word for word in words if word.endswith(".py"))
    i = -1
    while (i := i + 1) < len(out) - 1:
        word = out[i]
        name = STAND_INS.get(word.lstrip("-"))
        if not word.startswith("--") or name is None:
            continue
        if name == "vocab.json" and pairs:
            name = "bert-vocab.txt"
        if name == "text_document" and pairs:
            name = "text_sentence"
        if name == "spm.model" and "TikTokenizer" in words:
            name = "tiktoken.json"
        if name == "spm.model" and not re.search(r"\$.*/|/.*\$|/mnt|\.model$", out[i + 1]):
            continue  # the name of a model
        out[i + 1] = str(STAND / name)
        while name.startswith("text_") and i + 2 < len(out) and not out[i + 2].startswith("-"):
            del out[i + 2]
    return out


def ranks_of(words):
    """8 ranks, or those of the smallest layout if it needs another number: tests of two machines name none."""
    sizes = [int(words[words.index(f"--{name}-parallel-size") + 1]) for name in
             ("tensor-model", "pipeline-model", "context") if f"--{name}-parallel-size" in words]
    needed = math.prod(sizes)
    return "8" if 8 % needed == 0 else str(needed)


def megatron(clone):
    """Megatron-LM's functional tests: lists of arguments in YAML."""
    scripts = {"bert": "pretrain_bert.py", "t5": "pretrain_t5.py"}
    found = set()
    for file in files(clone, "tests/functional_tests/test_cases/*/*/model_config.yaml"):
        kind = file.split("/")[3]
        text = (clone / file).read_text()
        if kind not in ("gpt", "moe", "mixtral", "bert", "t5") or "inference" in file + text:
            continue
        words = ["torchrun", "--nproc_per_node", "8", scripts.get(kind, "pretrain_gpt.py")]
        arguments = text.partition("MODEL_ARGS:")[2]
        for name, value in re.findall(r"^  (--[\w-]+):\s*(.*?)\s*$", re.sub(r"\s#.*", "", arguments), re.M):
            value = value.strip("\"'")
            if value == "false":
                continue
            words += [name] if value == "true" else [name, *shlex.split(value)]
        words = with_stand_ins(words)
        words = [("1" if before == "--seed" else "out") if "$" in word or word.startswith("/mnt") else word
                 for before, word in zip([""] + words, words)]
        words[2] = ranks_of(words)
        if len(words) > 10 and tuple(words) not in found:
            found.add(tuple(words))
            yield words


NAMES = ("deepspeed", "torchrun", "python", "python3", "srun")
PRELUDE = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\"; printf '\\n'; }}\n" for name in NAMES) + """
whoami() { echo user; }
hostname() { echo localhost; }
date() { echo today; }
nvidia-smi() { for i in 0 1 2 3 4 5 6 7; do echo GPU; done; }
awk() { echo 2000000; }
ds_ssh() { echo; echo; nvidia-smi; }
wc() { local lines; mapfile -t lines; echo ${#lines[@]}; }
command_not_found_handle() { :; }
cd() { :; }
source() { :; }
kill() { :; }
PATH=/nowhere
set -r
"""


def without_files(text):
    """A shell script without redirections to files; places that a reader fills in (<PATH TO DATA>) become names."""
    text = re.sub(r"(?<!<)<\s*([A-Za-z][^<>\n|&]*?)\s*>", lambda match: re.findall(r"[\w.-]+", match.group(1))[-1], text)
    text = re.sub(r"\s(?:&>>?|[12]?>>?)[ \t]*(?!&)(?:\"[^\"\n]*\"|[^\s;)\"']+)", " ", text)
    text = re.sub(r"^ACTOR_MODEL_PATH=\s*#", "ACTOR_MODEL_PATH=$1 #", text, flags=re.M)
    text = re.sub(r"^CRITIC_MODEL_PATH=\s*#", "CRITIC_MODEL_PATH=$2 #", text, flags=re.M)
    return re.sub(r"\s2>&1|\|\s*tee\s[^\n\"']*", " ", text)


def shell(clone, pattern, scripts, arguments=lambda file: []):
    """Commands of shell scripts as bash expands them: a restricted shell without any program, in which the names of
    launchers are functions that print their words."""
    for file in files(clone, pattern):
        text = (clone / file).read_text(errors="replace")
        if not re.search(scripts, text):
            continue
        given = arguments(file)
        done = subprocess.run(["bash", "--noprofile", "--norc", "-c", PRELUDE + without_files(text), file, *given],
                              cwd=clone / pathlib.Path(file).parent, env={"HOME": "/home/user", "HOSTNAME": "localhost",
                              "USER": "user"}, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
        for line in done.stdout.split("\0\n"):
            words = line.split("\n")[-1].split("\0") if "\0" in line else []
            if "sh" in words and "-c" in words:  # srun ... sh -c 'COMMAND'
                words = shlex.split(words[words.index("-c") + 1])
            at = next((i for i, word in enumerate(words) if re.search(scripts, word)), 0)
            if at:
                words[at] = re.sub(r"^.*/(?=\w+\.py$)", "", words[at])
                yield file, words


def megatron_deepspeed(clone):
    """Its base scripts take a learning rate and a length as their first arguments."""
    def arguments(file):
        return ["2e-4", "300" if "gpt" in file else "2"] if "base_script" in file else []

    for _, words in shell(clone, "examples*/**/*.sh", r"pretrain_(gpt|bert|t5)\.py", arguments):
        if len(words) > 10:
            yield with_stand_ins(words)


def deepspeed_chat(clone):
    """Its scripts are started in the folder of their step; the models of the third step are their first arguments."""
    def arguments(file):
        if "step3" not in file:
            return []
        actor = "meta-llama/Llama-2-7b-hf" if "llama2" in file else "facebook/opt-1.3b"
        models = [actor, actor if "llama2" in file else "facebook/opt-350m"]
        return models + ["2", "2", "true", "false", "false", "false", "out"] if "sweep" in file else models

    scripts = "applications/DeepSpeed-Chat/training/*/training_scripts/**/*.sh"
    for file, words in shell(clone, scripts, r"main\.py", arguments):
        words[words.index("main.py")] = file.split("/training_scripts/")[0] + "/main.py"
        yield words


NEEDS_MEMORY = 5  # the exit status


def reason(errors):
    """What a refusal is about, without its place, its names and its numbers."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"(warning|fix|note|error: .*problems|error: .* options cannot)", line)]
    text = re.sub(r"^error: |\S+\.(ya?ml|toml|json)(:\d+)*:?|\d+", "", lines[0] if lines else "?")
    return re.sub(r'"[^"]*"', '""', text).strip()[:90]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default="build/release/bin/tessera")
    parser.add_argument("--stand", type=pathlib.Path, default=STAND, help="files that take the place of those of others")
    parser.add_argument("--list", help="writes the exit status, the first reason and the command of each there")
    parser.add_argument("--reasons", type=int, default=10, help="of each program, the most frequent")
    parser.add_argument("clones", nargs="+", help="PROGRAM=FOLDER")
    args = parser.parse_args()
    globals()["STAND"] = args.stand.resolve()
    listed = open(args.list, "w", encoding="utf-8") if args.list else None
    tessera = os.path.abspath(args.tessera)
    readers = {"axolotl": axolotl, "llamafactory": llamafactory, "trl": trl, "torchtitan": torchtitan,
               "megatron": megatron, "megatron_deepspeed": megatron_deepspeed, "deepspeed_chat": deepspeed_chat}
    for name, folder in (word.split("=", 1) for word in args.clones):
        clone = pathlib.Path(folder).resolve()
        count = collections.Counter()
        reasons = collections.Counter()
        for words in readers[name](clone):
            done = subprocess.run([tessera, *words, "--dry-run"], cwd=clone, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=300)
            count["commands"] += 1
            count["known"] += "is not an option of" not in done.stderr
            count["start"] += done.returncode == 0
            count["memory"] += done.returncode == NEEDS_MEMORY
            if done.returncode != 0:
                reasons[reason(done.stderr)] += 1
            if listed:
                print(done.returncode, reason(done.stderr) if done.returncode else "", shlex.join(words), sep="\t",
                      file=listed, flush=True)
        print(f"{name}: {count['commands']} commands, {count['known']} without an unknown option, "
              f"{count['start']} start, {count['memory']} need more memory than this machine has")
        for text, times in reasons.most_common(args.reasons):
            print(f"  {times:4} {text}")


if __name__ == "__main__":
    main()
