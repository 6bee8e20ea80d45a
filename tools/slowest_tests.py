#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the slowest tests of a run of ctest, and how many passed: `tools/slowest_tests.py build/release/tests.xml [COUNT]`.

The file is that of `ctest --output-junit tests.xml`; COUNT is 10 unless it is given. Tests that did not run are left out.
"""
import sys
import xml.etree.ElementTree


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) == 3 else 10
    cases = list(xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"))
    ran = [(float(case.get("time", 0)), case.get("name")) for case in cases if case.get("status") in ("run", "fail")]
    total = sum(seconds for seconds, _ in ran)
    slowest = sorted(ran, reverse=True)[:count]
    print(f"the {len(slowest)} slowest of {len(ran)} tests, which took {total:.0f} s in all:")
    for seconds, name in slowest:
        print(f"  {seconds:7.1f} s  {name}")
    failed = sum(case.get("status") == "fail" for case in cases)
    print(f"{len(ran) - failed} passed, {failed} failed, {len(cases) - len(ran)} skipped")


main()
