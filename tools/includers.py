#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the sources that include a header, directly or through other headers.

usage: tools/includers.py HEADER [-v]     how many, and with -v which
       tools/includers.py --check         fails if the parts of a plan have more includers than the limits below

A key that is added to a part of a plan rebuilds every source that includes the part. The limits keep that number from growing;
lower them when it falls.
"""
import functools
import pathlib
import re
import sys

LIMITS = {
    "tessera/parallel/layout.h": 30,
    "tessera/planner/model_plan.h": 30,
    "tessera/planner/data_plan.h": 30,
    "tessera/planner/recipe.h": 30,
    "tessera/planner/run_plan.h": 30,
    "tessera/planner/train_config.h": 30,
}

root = pathlib.Path(__file__).resolve().parent.parent
included = {
    path.relative_to(root).as_posix(): re.findall(r'#include "(tessera/[^"]+)"', path.read_text())
    for path in sorted((root / "tessera").rglob("*"))
    if path.suffix in (".h", ".cpp")
}


@functools.cache
def reached(file):
    seen, left = set(), list(included.get(file, []))
    while left:
        header = left.pop()
        if header not in seen:
            seen.add(header)
            left += included.get(header, [])
    return seen


def includers(header):
    return [file for file in included if file.endswith(".cpp") and header in reached(file)]


def check():
    bad = False
    for header, limit in LIMITS.items():
        if header not in included:
            print(f"{header} does not exist, and tools/includers.py limits its includers")
            bad = True
        elif (count := len(includers(header))) > limit:
            print(f"{header} is included by {count} sources, {limit} are allowed: read the values by planner/values.h, or pass them")
            bad = True
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    if len(sys.argv) < 2 or sys.argv[1] not in included:
        sys.exit(__doc__)
    found = includers(sys.argv[1])
    print("\n".join(found) if "-v" in sys.argv else len(found))
