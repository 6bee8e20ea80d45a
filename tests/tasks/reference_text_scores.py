#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reference_text_scores.json: scores of texts as rouge_score 0.1.2 and sacrebleu 2.6.0 give them.
usage: pip install rouge-score==0.1.2 sacrebleu==2.6.0 && python3 tests/tasks/reference_text_scores.py > tests/tasks/reference_text_scores.json"""
import json
import random

import sacrebleu
from rouge_score import rouge_scorer

random.seed(5)
WORDS = "the a cat Dog sat on mat, ran. fast; 3.5 1,000 2-4 well-known \"quoted\" (aside) don't U.S. & &amp; x<y 50% naïve\n/ {z}".split(" ")


def text(words):
    return " ".join(random.choice(WORDS) for _ in range(words))


def near(of):
    words = of.split(" ")
    for _ in range(random.randint(0, len(words))):
        words[random.randrange(len(words))] = random.choice(WORDS)
    return " ".join(words[: random.randint(1, len(words))])


scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
pairs = [("the cat sat on the mat", "the cat sat on the mat"), ("", "nothing was written"), ("something", ""), ("no word in common", "xyz"),
         ("Hello, World! It's 3.14 or 1,000.", "hello world, it's 3.14 or 1,000"), ("a", "a"), ("...", "!!!")]
for _ in range(60):
    expected = text(random.randint(1, 25))
    pairs.append((near(expected), expected))
out = {"pairs": [], "corpora": []}
for written, expected in pairs:
    scores = scorer.score(expected, written)
    out["pairs"].append({"written": written, "expected": expected,
                         "rouge": [scores[kind].fmeasure for kind in ("rouge1", "rouge2", "rougeL")]})
for first, last in ((0, 1), (1, 2), (3, 4), (4, 5), (5, 6), (0, 7), (7, 20), (20, 67), (0, 67), (30, 31), (31, 32), (32, 33)):
    some = pairs[first:last]
    score = sacrebleu.corpus_bleu([written for written, _ in some], [[expected for _, expected in some]])
    out["corpora"].append({"first": first, "last": last, "bleu": score.score})
print(json.dumps(out, indent=0))
