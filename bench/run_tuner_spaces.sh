#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the winner of `tessera tune` with the best of an exhaustive run, on five small spaces of two ranks: all ZeRO stages, micro-batches
# and recomputations of a model. Every layout is trained for a few steps by turns; the winner counts with the exhaustive run's time.
# What was measured stays in FOLDER/cells.jsonl, and the same command goes on; SPACES: the first so many of the five.
# usage: bench/run_tuner_spaces.sh TESSERA FOLDER [ROUNDS] [SPACES]
set -euo pipefail
tessera=$(realpath "${1:?usage: run_tuner_spaces.sh TESSERA FOLDER [ROUNDS] [SPACES]}")
folder=$(realpath -m "${2:?a folder}")
rounds=${3:-2}
mkdir -p "$folder"
export TESSERA_CACHE=${TESSERA_CACHE:-$folder/cache} OMP_WAIT_POLICY=passive
mkdir -p "$TESSERA_CACHE"
[[ -e $TESSERA_CACHE/machine.json ]] || "$tessera" bench machine
[[ -e $folder/text.txt ]] || for i in $(seq 4000); do echo "line $i of a text that nobody has to learn"; done >"$folder/text.txt"
cd "$folder"
python3 - "$tessera" "$rounds" "${4:-5}" <<'PY'
import json, os, statistics, subprocess, sys

tessera, rounds, spaces = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SPACES = [("gpt2", 2, 128, 64), ("gpt2", 4, 192, 128), ("llama", 2, 192, 128), ("llama", 4, 128, 64), ("opt", 2, 256, 64)]
RECOMPUTE = ["none", "selective", "full"]


def config_of(space, run, choice=None):
    family, layers, hidden, length = space
    out = {"model": {"family": family, "num_layers": layers, "hidden_size": hidden, "num_heads": max(2, hidden // 32),
                     "vocab_size": 2048, "max_positions": length},
           "tokenizer": {"type": "byte"}, "data": {"train": "text.txt", "sequence_length": length},
           "trainer": {"max_steps": 8}, "eval": {"every": 0}, "checkpoint": {"every": 0, "final": False},
           "run": {"dir": run, "threads_per_rank": 1}}
    if choice is None:
        out.update({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1})
    else:
        zero, micro, recompute = choice
        out.update({"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": 4 // micro,
                    "zero_optimization": {"stage": zero}, "activation_checkpointing": {"granularity": recompute}})
    return out


def train(config, run):
    with open("cell.json", "w") as file:
        json.dump(config, file)
    subprocess.run(["rm", "-rf", run])
    done = subprocess.run([tessera, "train", "cell.json", "-n", "2", "--quiet", "--resume", "never"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return []
    return [json.loads(line)["step_ms"] / 1000 for line in open(f"{run}/metrics.jsonl")][2:]


done = {}
if os.path.exists("cells.jsonl"):
    done = {(row["space"], tuple(row["choice"]), row["round"]): row["steps"] for row in map(json.loads, open("cells.jsonl"))}


def measured(number, space, choice, turn):
    if (number, choice, turn) not in done:
        done[number, choice, turn] = train(config_of(space, "run", choice), "run")
        with open("cells.jsonl", "a") as out:
            out.write(json.dumps({"space": number, "choice": choice, "round": turn, "steps": done[number, choice, turn]}) + "\n")
    return done[number, choice, turn]


for number, space in enumerate(SPACES[:spaces]):
    choices = [(zero, micro, recompute) for zero in range(4) for micro in (1, 2, 4) for recompute in RECOMPUTE]
    steps = {choice: [] for choice in choices}
    for turn in range(rounds):
        for choice in choices:
            steps[choice] += measured(number, space, choice, turn)
    times = {choice: statistics.quantiles(of, n=4)[0] for choice, of in steps.items() if len(of) > 1}
    with open("space.json", "w") as file:
        json.dump(config_of(space, "run"), file)
    out = f"tune-{number}"
    subprocess.run(["rm", "-rf", out])
    tuned = subprocess.run([tessera, "tune", "space.json", "-n", "2", "--fix", "parallel", "--fix", "run.threads_per_rank", "--fix",
                            "zero_optimization.reduce_bucket_size", "--trials", str(max(2, len(choices) // 10)), "--out", out, "--json"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if tuned.returncode != 0:
        print(space, "was not tuned:", tuned.stderr.strip())
        continue
    result = json.loads(tuned.stdout)
    winner = result["winner"]
    choice = (winner["zero_optimization.stage"], winner["train_micro_batch_size_per_gpu"],
              winner["activation_checkpointing.granularity"])
    best = min(times, key=times.get)
    worst = max(times.values())
    print(f"{space}: {len(result['trials'])} trials of {len(times)} layouts; winner {choice} {1e3 * times[choice]:.1f} ms, best {best} "
          f"{1e3 * times[best]:.1f} ms: {100 * (times[choice] / times[best] - 1):.1f} % above it; the worst {100 * (worst / times[best] - 1):.0f} %",
          flush=True)
PY
