#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts of digits that are to be copied: {"prompt": "7=", "answer": "7"}.   usage: make_digits.py COUNT"""
import json
import random
import sys

draw = random.Random(1)
for _ in range(int(sys.argv[1])):
    digit = str(draw.randrange(10))
    print(json.dumps({"prompt": digit + "=", "answer": digit}))
