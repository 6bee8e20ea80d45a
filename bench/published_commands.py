#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts how many published commands of other programs tessera reads and would start.

The commands are read from clones of the programs' repositories, which are not part of tessera:
  bench/published_commands.py [--tessera build/release/bin/tessera] axolotl=CLONE llamafactory=CLONE trl=CLONE torchtitan=CLONE
The names of models and data sets in them are looked for in TESSERA_MODELS and TESSERA_DATA: give
folders with small stand-ins, OWNER/MODEL with a config.json of the same model_type, and
OWNER/DATA/train.jsonl. Each command is read with --dry-run. For each program the number of
commands, of those without an unknown option, of those that start, and the reasons of the others.
"""
import argparse
import collections
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


def reason(errors):
    """What a refusal is about, without its place, its names and its numbers."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"(warning|fix|note|error: .*problems|error: .* options cannot)", line)]
    text = re.sub(r"^error: |\S+\.(ya?ml|toml|json)(:\d+)*:?|\d+", "", lines[0] if lines else "?")
    return re.sub(r'"[^"]*"', '""', text).strip()[:90]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default="build/release/bin/tessera")
    parser.add_argument("--reasons", type=int, default=10, help="of each program, the most frequent")
    parser.add_argument("clones", nargs="+", help="PROGRAM=FOLDER")
    args = parser.parse_args()
    tessera = os.path.abspath(args.tessera)
    readers = {"axolotl": axolotl, "llamafactory": llamafactory, "trl": trl, "torchtitan": torchtitan}
    for name, folder in (word.split("=", 1) for word in args.clones):
        clone = pathlib.Path(folder).resolve()
        count = collections.Counter()
        reasons = collections.Counter()
        for words in readers[name](clone):
            done = subprocess.run([tessera, *words, "--dry-run"], cwd=clone, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=120)
            count["commands"] += 1
            count["known"] += "is not an option of" not in done.stderr
            count["start"] += done.returncode == 0
            if done.returncode != 0:
                reasons[reason(done.stderr)] += 1
        print(f"{name}: {count['commands']} commands, {count['known']} without an unknown option, {count['start']} start")
        for text, times in reasons.most_common(args.reasons):
            print(f"  {times:4} {text}")


if __name__ == "__main__":
    main()
