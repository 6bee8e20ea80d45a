#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small data for the examples of this folder, in a few forms in which people keep theirs.

usage: examples/finetune/make_data.py [FOLDER]     (finetune-data)
"""
import csv
import json
import pathlib
import random
import struct
import sys
import zlib

draw = random.Random(7)
ANIMALS = {"cat": 4, "dog": 4, "bird": 2, "ant": 6, "fish": 0, "horse": 4, "bee": 6, "goose": 2}
INTENTS = {"greeting": ["hello", "good morning"], "weather": ["will it rain", "how warm is it"], "music": ["play a song", "louder please"],
           "alarm": ["wake me at six", "set a timer"], "thanks": ["thank you", "that was kind"], "other": ["tell me more", "i do not know"]}


def lines(path, records):
    with open(path, "w", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps(record) + "\n")


def boolq(count):
    for _ in range(count):
        animal, legs = draw.choice(list(ANIMALS)), draw.choice([0, 2, 4, 6])
        yield {"question": f"does a {animal} have {legs} legs", "passage": f"A {animal} has {ANIMALS[animal]} legs.", "label": ANIMALS[animal] == legs}


def intents(path, count):
    """Some intents are rare, and "tell me more" means what was asked before."""
    names = list(INTENTS)
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["session_id", "prompt", "label_name", "context_info"])
        for i in range(count):
            name = draw.choices(names, weights=[40, 20, 12, 10, 10, 8])[0]
            before = draw.choice(names)
            history = [draw.choice(INTENTS[before]), "yes, of course"]
            out.writerow([i, draw.choice(INTENTS[name]), name, json.dumps(history) if i % 2 else ""])


def conversations(count):
    for _ in range(count):
        a, b = draw.randrange(5), draw.randrange(5)
        yield {"messages": [{"role": "system", "content": "You add."}, {"role": "user", "content": f"{a} + {b}"},
                            {"role": "assistant", "content": str(a + b)}]}


def articles(count):
    for _ in range(count):
        animal, place = draw.choice(list(ANIMALS)), draw.choice(["park", "house", "sea", "wood"])
        yield {"article": f"Yesterday a {animal} was seen near the {place}. People came to look.", "highlights": f"{animal} near {place}"}


def picture(path, light_is_left):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b""
    for _ in range(16):
        rows += b"\0" + b"".join(bytes([min(255, (180 if (x < 8) == light_is_left else 40) + draw.randrange(60))] * 3) for x in range(16))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
                     + chunk(b"IEND", b""))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "finetune-data")
    folder.mkdir(parents=True, exist_ok=True)
    lines(folder / "boolq-train.jsonl", boolq(256))
    lines(folder / "boolq-dev.jsonl", boolq(64))
    intents(folder / "intents-train.csv", 240)
    intents(folder / "intents-dev.csv", 60)
    lines(folder / "chat.jsonl", conversations(192))
    lines(folder / "articles.jsonl", articles(192))
    for part, count in (("train", 48), ("dev", 16)):
        for name in ("left", "right"):
            (folder / f"pictures-{part}" / name).mkdir(parents=True, exist_ok=True)
            for i in range(count // 2):
                picture(folder / f"pictures-{part}" / name / f"{i}.png", name == "left")


if __name__ == "__main__":
    main()
