#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares predicted with measured steps over a grid of families, sizes and layouts (run_plan_grid.sh).

The rates are those of `tessera bench machine`. A correction (the logarithm of measured over predicted, linear in a few properties of a
cell) is fitted to half of the models and applied to the others. Beside it stands one share of the peak, the best one of the same half.
usage: plan_grid.py TESSERA FOLDER [ROUNDS] [CELLS] [compare|replan]
CELLS: so many of the 320, drawn at random with a fixed seed, so that a larger number adds to a smaller one. compare: measures nothing.
replan: measures nothing, but plans all cells anew with this program and the rates of FOLDER/cache.
"""
import json, math, os, random, statistics, subprocess, sys

words = [word for word in sys.argv[1:] if word not in ("", "compare", "replan")]
tessera, folder = words[0], words[1]
rounds = int(words[2]) if len(words) > 2 else 2
number_of_cells = int(words[3]) if len(words) > 3 else None
STEPS = 8

MODELS = [(family, layers, hidden, length)
          for family in ("gpt2", "llama", "opt", "gpt_neox")
          for layers, hidden, length in ((2, 64, 64), (4, 128, 64), (2, 192, 128), (4, 256, 64), (2, 256, 128))]
LAYOUTS = [(1, 0, micro, {}) for micro in (1, 2, 4, 8)]
LAYOUTS += [(1, 0, 4, {"activation_checkpointing": {"granularity": kind}}) for kind in ("full", "selective")]
LAYOUTS += [(2, zero, micro, {}) for zero, micro in ((0, 2), (1, 2), (2, 4), (3, 4), (1, 1), (3, 1))]
LAYOUTS += [(2, 3, 2, {"activation_checkpointing": {"granularity": "full"}}),
            (2, 0, 4, {"parallel": {"tensor": {"size": 2}}}),
            (2, 0, 2, {"parallel": {"tensor": {"size": 2}, "sequence": True}}),
            (2, 0, 2, {"parallel": {"pipeline": {"size": 2}}})]


def config_of(model, layout, run):
    family, layers, hidden, length = model
    ranks, zero, micro, more = layout
    shared = 2 if "parallel" in more else 1
    out = {"model": {"family": family, "num_layers": layers, "hidden_size": hidden, "num_heads": max(2, hidden // 32),
                     "vocab_size": 2048, "max_positions": length},
           "tokenizer": {"type": "byte"}, "data": {"train": os.path.join(folder, "text.txt"), "sequence_length": length},
           "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": 8 * shared // (micro * ranks),
           "zero_optimization": {"stage": zero}, "trainer": {"max_steps": STEPS}, "eval": {"every": 0},
           "checkpoint": {"every": 0, "final": False}, "run": {"dir": run, "threads_per_rank": 1}}
    out.update(more)
    return out


def call(words):
    return subprocess.run([tessera] + words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def cells():
    all_of_them = [(f"{m}-{l}", m, model, layout) for m, model in enumerate(MODELS) for l, layout in enumerate(LAYOUTS)]
    random.Random(1).shuffle(all_of_them)
    return all_of_them[:number_of_cells]


def planned(file, ranks):
    return call(["plan", file, "-n", str(ranks), "--device", "here", "--json"])


def measure():
    """One JSON line a cell and round: what is there already is not measured again."""
    path = os.path.join(folder, "cells.jsonl")
    done = set()
    if os.path.exists(path):
        done = {(row["cell"], row["round"]) for row in map(json.loads, open(path))}
    predicted = {}
    with open(path, "a") as out:
        for number in range(rounds):  # by turns, so that a busy minute does not fall on one cell alone
            for cell, m, model, layout in cells():
                if (cell, number) in done:
                    continue
                run = os.path.join(folder, "run")
                file = os.path.join(folder, "cell.json")
                with open(file, "w") as config:
                    json.dump(config_of(model, layout, run), config)
                subprocess.run(["rm", "-rf", run])
                row = {"cell": cell, "round": number, "model": m}
                if number == 0:
                    plan = planned(file, layout[0])
                    if plan.returncode != 0:
                        row["error"] = plan.stderr.strip().split("\n")[0]
                    else:
                        row["plan"] = json.loads(plan.stdout)
                trained = call(["train", file, "-n", str(layout[0]), "--quiet", "--resume", "never"])
                if trained.returncode != 0:
                    row["error"] = trained.stderr.strip().split("\n")[0]
                else:
                    steps = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
                    row["step_s"] = [step["step_ms"] / 1000 for step in steps[2:]]
                    row["memory"] = max(step["mem_peak_bytes"] for step in steps)
                out.write(json.dumps(row) + "\n")
                out.flush()


def solve(rows, targets, ridge=1e-3):
    """Least squares with a small penalty, by elimination."""
    n = len(rows[0])
    a = [[sum(r[i] * r[j] for r in rows) + (ridge if i == j else 0) for j in range(n)] + [sum(r[i] * t for r, t in zip(rows, targets))]
         for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(a[k][i]))
        a[i], a[pivot] = a[pivot], a[i]
        for k in range(n):
            if k != i:
                f = a[k][i] / a[i][i]
                a[k] = [x - f * y for x, y in zip(a[k], a[i])]
    return [a[i][n] / a[i][i] for i in range(n)]


def features(row):
    layout = LAYOUTS[int(row["cell"].split("-")[1])]
    parallel = layout[3].get("parallel", {})
    flops = row["plan"]["model_flops"] if "model_flops" in row["plan"] else row["predicted"]
    return [1.0, float(layout[0] == 2), float("tensor" in parallel), float("pipeline" in parallel), float(layout[1] == 3),
            float("activation_checkpointing" in layout[3]), math.log(layout[2]), math.log(flops) - 20]


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def told(name, errors):
    print(f"{name:<46} {len(errors):>4} cells: median {100 * statistics.median(errors):5.1f} %, "
          f"95th percentile {100 * quantile(errors, .95):5.1f} %, most {100 * max(errors):6.1f} %")


def plan_again(rows):
    """Replaces the plans by those of this program."""
    file = os.path.join(folder, "replan.json")
    for row in rows.values():
        row.pop("plan", None)
    for cell, _, model, layout in cells():
        if cell not in rows:
            continue
        with open(file, "w") as config:
            json.dump(config_of(model, layout, os.path.join(folder, "run")), config)
        plan = planned(file, layout[0])
        if plan.returncode == 0:
            rows[cell]["plan"] = json.loads(plan.stdout)
        else:
            print(f"cell {cell} cannot be planned: {plan.stderr.strip()}")


def compare():
    rows, errors = {}, {}
    for line in map(json.loads, open(os.path.join(folder, "cells.jsonl"))):
        if "error" in line:
            errors[line["cell"]] = line["error"]
            continue
        row = rows.setdefault(line["cell"], {"cell": line["cell"], "model": line["model"], "steps": []})
        row["steps"] += line["step_s"]
        row["memory"] = line["memory"]
        if "plan" in line:
            row["plan"] = line["plan"]
    if "replan" in sys.argv:
        plan_again(rows)
    rows = [row for row in rows.values() if "plan" in row]
    for row in rows:
        row["predicted"] = row["plan"]["step_s"]
        row["measured"] = quantile(row["steps"], .25)  # the machine is not quiet: the undisturbed steps
        row["noise"] = quantile(row["steps"], .75) / row["measured"] - 1
    fitted = [row for row in rows if row["model"] % 2 == 0]
    others = [row for row in rows if row["model"] % 2 == 1]
    for cell, error in sorted(errors.items()):
        print(f"cell {cell} was not measured: {error}")
    weights = solve([features(row) for row in fitted], [math.log(row["measured"] / row["predicted"]) for row in fitted])
    flops = lambda row: row["plan"].get("model_flops", row["predicted"])
    constant = statistics.median(row["measured"] / flops(row) for row in fitted)
    correct = lambda row: row["predicted"] * math.exp(sum(w * f for w, f in zip(weights, features(row))))
    error = lambda value, row: abs(value / row["measured"] - 1)
    told("noise: third quartile of a cell's steps", [row["noise"] for row in rows])
    told("time, as predicted, all", [error(row["predicted"], row) for row in rows])
    told("time, corrected, models that were fitted", [error(correct(row), row) for row in fitted])
    told("time, corrected, models that were not fitted", [error(correct(row), row) for row in others])
    told("time, one share of the peak, not fitted", [error(constant * flops(row), row) for row in others])
    # Steps count what tensors and buffers take; a plan also has the base memory of a process.
    memory = lambda row: row["plan"]["memory_bytes"] - row["plan"]["memory_parts_bytes"]["other"]
    told("memory without that of a bare process, all", [abs(memory(row) / row["memory"] - 1) for row in rows])
    less = [1 - memory(row) / row["memory"] for row in rows if memory(row) < row["memory"]]
    print(f"planned less than was used: {len(less)} cells" + (f", by {100 * max(less):.1f} % at most" if less else ""))
    inside = sum(row["plan"]["step_low_s"] <= row["measured"] <= row["plan"]["step_high_s"] for row in rows)
    print(f"measured within the planned interval: {inside} of {len(rows)} cells")


if "compare" not in sys.argv and "replan" not in sys.argv:
    measure()
compare()
