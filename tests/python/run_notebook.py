#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the code cells of a notebook in the current folder, as Jupyter would: run_notebook.py NOTEBOOK"""

import ast
import json
import sys


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        notebook = json.load(file)
    names = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        code = ast.parse("".join(cell["source"]), filename=cell["id"])
        # The value of a last expression is shown.
        last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, cell["id"], "exec"), names)
        if last is not None:
            print(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))


if __name__ == "__main__":
    main()
