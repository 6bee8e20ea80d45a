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
text_document.bin and .idx, ds.json. Each command is read with --dry-run. For each program the number of
commands, of those without an unknown option, of those that start, and the reasons of the others.
"""
import argparse
import ast
import collections
import operator
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
    out = list(words)
    pairs = any("bert" in word or "t5" in word for word in words if word.endswith(".py"))
    i = -1
    while (i := i + 1) < len(out) - 1:
        word = out[i]
        name = STAND_INS.get(word.lstrip("-"))
        if not word.startswith("--") or name is None:
            continue
        if name == "vocab.json" and pairs:
            name = "bert-vocab.txt"
        if name == "spm.model" and "TikTokenizer" in words:
            name = "tiktoken.json"
        if name == "spm.model" and ("/" not in out[i + 1] or "$" not in out[i + 1]) and "/mnt" not in out[i + 1]:
            continue  # the name of a model
        out[i + 1] = str(STAND / name)
        while name == "text_document" and i + 2 < len(out) and not out[i + 2].startswith("-"):
            del out[i + 2]
    return out


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
        words = ["out" if "$" in word or word.startswith("/mnt") else word for word in with_stand_ins(words)]
        if len(words) > 10 and tuple(words) not in found:
            found.add(tuple(words))
            yield words


def arithmetic(text):
    """The value of sums and products of whole numbers; the text itself if it is anything else."""
    operations = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv}

    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        return operations[type(node.op)](value(node.left), value(node.right))

    try:
        return str(value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, KeyError, AttributeError, ZeroDivisionError):
        return text


def shell(clone, pattern, scripts):
    """Commands of shell scripts, with the values that the script itself gives to its variables."""
    for file in files(clone, pattern):
        values = {"HOSTNAME": "here", "PWD": ".", "1": "", "2": "", "@": ""}
        lines = re.sub(r"\\\s*\n", " ", (clone / file).read_text(errors="replace")).splitlines()

        def put(text):
            def value(match):
                name, _, usual = (match.group(1) or match.group(2)).partition(":-")
                return values.get(name) or usual
            for _ in range(4):
                text = re.sub(r"\$\{([\w@]+(?::-[^}]*)?)\}|\$(\w+|@)", value, text)
            return re.sub(r"\$\(\((.*?)\)\)(?=\D|$)", lambda match: arithmetic(match.group(1)), text)

        for line in lines:
            line = line.strip()
            line = line.removeprefix("export ")
            given = re.match(r"(\w+)=(\"[^\"]*\"|'[^']*'|\S*)\s*(?:#.*)?$", line)
            if given and not re.search(r"\b(deepspeed|torchrun|python\d?)\b.*(%s)" % scripts, line):
                values[given.group(1)] = put(given.group(2).strip("\"'"))
                continue
            text = put(line.strip("\"'"))
            text = re.sub(r"^\w+=[\"']?(?=deepspeed|torchrun|python)", "", text)
            text = re.sub(r"\s(&>|2>|>|\|).*", "", text)
            if not re.match(r"(deepspeed|torchrun|python\d?)\b", text) or not re.search(scripts, text):
                continue
            try:
                words = shlex.split(text, comments=True)
            except ValueError:
                continue
            yield file, [word for word in words if word]


def megatron_deepspeed(clone):
    for _, words in shell(clone, "examples*/**/*.sh", r"pretrain_(gpt|bert|t5)\.py"):
        yield with_stand_ins(words)


def deepspeed_chat(clone):
    """Its scripts are started in the folder of their step."""
    for file, words in shell(clone, "applications/DeepSpeed-Chat/training/*/training_scripts/**/*.sh", r"main\.py"):
        at = words.index("main.py") if "main.py" in words else -1
        if at >= 0:
            words[at] = file.split("/training_scripts/")[0] + "/main.py"
            yield words


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
            if done.returncode != 0:
                reasons[reason(done.stderr)] += 1
            if listed:
                print(done.returncode, reason(done.stderr) if done.returncode else "", shlex.join(words), sep="\t",
                      file=listed, flush=True)
        print(f"{name}: {count['commands']} commands, {count['known']} without an unknown option, {count['start']} start")
        for text, times in reasons.most_common(args.reasons):
            print(f"  {times:4} {text}")


if __name__ == "__main__":
    main()
