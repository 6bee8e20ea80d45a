#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tests of source files: `tools/tests_of.py tessera/data/chunks.cpp`.

A test of a source has the same name (tests/data/chunks_test.cpp), includes its header, or is listed for it in
tests/sources.txt. `--check` fails if a source has no test, or if a line of that table has no source or no test.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "sources.txt"


def files(*patterns):
    # Files that git does not know yet count as well: a source and its test are written before they are committed.
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
    return sorted({name for name in listed.stdout.split("\n") if name and (ROOT / name).exists()})


def read_table():
    rows = []
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        fields = line.split("#")[0].split()
        if fields:
            rows.append((number, fields[0], fields[1:]))
    return rows


class Tests:
    def __init__(self):
        self.tests = [name for name in files("tests") if re.search(r"_test\.(cpp|sh)$", name)]
        self.rows = read_table()
        self.used = set()
        self.by_header = {}
        for name in self.tests:
            for header in re.findall(r'#include "(tessera/[^"]+)\.h"', (ROOT / name).read_text()):
                self.by_header.setdefault(header, []).append(name)

    def of(self, source):
        stem = source.removesuffix(".cpp")
        inside = stem.removeprefix("tessera/")
        found = [f"tests/{inside}_test{end}" for end in (".cpp", ".sh") if f"tests/{inside}_test{end}" in self.tests]
        found += self.by_header.get(stem, [])
        if not found:
            # The first line that fits decides, so that an exception stands above the pattern of its folder.
            for number, pattern, names in self.rows:
                if fnmatch.fnmatchcase(inside + ".cpp", pattern) and pattern.count("/") == inside.count("/"):
                    self.used.add(number)
                    found += [f"tests/{name}" for name in names]
                    break
        return list(dict.fromkeys(found))


def check():
    tests = Tests()
    wrong = [f"{source}: no test has its name, includes its header or is listed for it in tests/sources.txt"
             for source in files("tessera/*.cpp") if not tests.of(source)]
    for number, pattern, names in tests.rows:
        if number not in tests.used:
            wrong.append(f"tests/sources.txt:{number}: {pattern} decides for no source; remove the line")
        if not names:
            wrong.append(f"tests/sources.txt:{number}: {pattern} has no test")
        wrong += [f"tests/sources.txt:{number}: tests/{name} does not exist" for name in names
                  if f"tests/{name}" not in tests.tests]
    print("\n".join(wrong) or "every source has a test")
    return 1 if wrong else 0


def main(arguments):
    if arguments == ["--check"]:
        return check()
    if not arguments or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 64
    tests = Tests()
    known = files("tessera/*.cpp")
    for argument in arguments:
        path = pathlib.Path(argument).resolve()
        source = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else argument
        if source not in known:
            print(f"{argument} is not a source below tessera/; name a .cpp file", file=sys.stderr)
            return 64
        print("\n".join(tests.of(source)) or f"{source} has no test")
    return 0


sys.exit(main(sys.argv[1:]))
