#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes preferences of a text: the line that follows is preferred to another one in capitals.

usage: make_pairs.py TEXT COUNT > pairs.jsonl
"""
import json
import random
import sys


def main() -> None:
    path, count = sys.argv[1], int(sys.argv[2])
    with open(path, encoding="utf-8") as text:
        lines = [line.strip() for line in text]
    follows = [(a, b) for a, b in zip(lines, lines[1:]) if len(a) > 20 and len(b) > 20]
    draw = random.Random(1234)
    for prompt, chosen in draw.sample(follows, count):
        rejected = draw.choice(follows)[1].upper()
        print(json.dumps({"prompt": prompt + "\n", "chosen": chosen, "rejected": rejected}))


if __name__ == "__main__":
    main()
