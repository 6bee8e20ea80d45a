# SPDX-License-Identifier: Apache-2.0
"""Finds and runs the program ``tessera``."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from .errors import SystemFailure, error_of

TORCH = "2.11"


def _installed_torch() -> Path | None:
    """The folder of the installed torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _torch_version(folder: Path) -> str:
    text = (folder / "version.py").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("__version__ = "):
            return line.split("=", 1)[1].strip().strip("'\"")
    return "unknown"


def program() -> Path:
    """The path of the program: TESSERA_PROGRAM, the one in this package, or the first in PATH.

    Raises SystemFailure if there is none.
    """
    asked = os.environ.get("TESSERA_PROGRAM")
    if asked:
        if not os.access(asked, os.X_OK):
            raise SystemFailure(f"TESSERA_PROGRAM is {asked}, which is not a program", "set it to bin/tessera of a build")
        return Path(asked)
    own = Path(__file__).parent / "bin" / "tessera"
    if own.exists():
        return own
    # The script of this package, which asks this function, does not count.
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("tessera", path=folder) if folder else None
        if found and not _is_script(found):
            return Path(found)
    raise SystemFailure("the program tessera is not installed", "pip install tessera-train, or set TESSERA_PROGRAM")


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def environment(path: Path) -> dict[str, str]:
    """The variables with which the program of this package finds the installed torch's libraries.

    Raises SystemFailure if torch is missing or of another version.
    """
    out = dict(os.environ)
    if path.parent.parent != Path(__file__).parent:
        return out  # a build that knows its libtorch
    torch = _installed_torch()
    if torch is None:
        raise SystemFailure("torch is not installed", f"pip install torch=={TORCH}.0")
    found = _torch_version(torch)
    if not found.startswith(TORCH + "."):
        raise SystemFailure(f"torch is {found}, and this package was built for {TORCH}", f"pip install torch=={TORCH}.0")
    libraries = [str(Path(__file__).parent / "lib"), str(torch / "lib")]
    if out.get("LD_LIBRARY_PATH"):
        libraries.append(out["LD_LIBRARY_PATH"])
    out["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    return out


def run(*words: str, stdin: str | None = None) -> str:
    """Runs the program with these words and returns its standard output.

    Raises the exception of its exit code (tessera.errors).
    """
    path = program()
    done = subprocess.run(
        [str(path), *words],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment(path),
        check=False,
    )
    if done.returncode != 0:
        raise error_of(_code(done.returncode), done.stderr)
    return done.stdout


def _code(returncode: int) -> int:
    """The exit code as a shell counts it: 128 and the number of the signal for a killed program."""
    return returncode if returncode >= 0 else 128 - returncode


def run_json(*words: str) -> Any:
    """Runs the program with ``--json`` and returns what it writes."""
    return json.loads(run(*words, "--json"))


def options(named: dict[str, Any]) -> list[str]:
    """Keyword arguments as flags: ``max_new_tokens=5`` is ``--max-new-tokens 5``, True a flag alone, a list one flag
    for each of its elements; None and False are left out."""
    out: list[str] = []
    for name, value in named.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                out.append(flag)
                continue
            # "=" so that a value may begin with "-".
            text = json.dumps(each) if isinstance(each, dict) else str(each)
            out.append(f"{flag}={text}")
    return out


def version() -> dict[str, str]:
    """The versions of tessera, libtorch and the compiler, and the kernels that this CPU runs."""
    return run_json("version")


def main() -> int:
    """The script ``tessera``: becomes the program."""
    try:
        path = program()
        env = environment(path)
    except SystemFailure as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    env.setdefault("TESSERA_PYTHON", sys.executable)  # of `tessera launch script.py`
    os.execve(path, ["tessera", *sys.argv[1:]], env)
    return 1
