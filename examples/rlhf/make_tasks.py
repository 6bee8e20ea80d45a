#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Questions with answers that can be verified, from three generators: sums, letters in a word, the next number of a sequence.
usage: make_tasks.py COUNT [SEED]"""
import json
import random
import sys

WORDS = "banana letter orange window pepper butter mirror tomato rabbit little coffee bottle summer yellow planet".split()


def total(draw):
    numbers = [draw.randrange(1, 10) for _ in range(draw.randrange(2, 4))]
    return "What is " + " + ".join(map(str, numbers)) + "?", sum(numbers)


def letters(draw):
    word = draw.choice(WORDS)
    letter = draw.choice(word)
    return f'How many times is the letter "{letter}" in "{word}"?', word.count(letter)


def sequence(draw):
    first, step = draw.randrange(1, 10), draw.randrange(1, 6)
    shown = ", ".join(str(first + i * step) for i in range(4))
    return f"Which number comes next: {shown}?", first + 4 * step


draw = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
for _ in range(int(sys.argv[1])):
    task = draw.choice((total, letters, sequence))
    question, answer = task(draw)
    content = question + ' Answer with "####" and the number alone, such as "#### 12".'
    print(json.dumps({"messages": [{"role": "user", "content": content}], "task": task.__name__, "answer": str(answer)}))
