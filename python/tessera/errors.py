# SPDX-License-Identifier: Apache-2.0
"""The program's errors as exceptions: one class for each exit code."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration."""

    place: str  #: "my.json:3:12", "--set optimizer.lr=x", or "" if the value has no place
    key: str  #: "optimizer.params.lr", or "" if it is not about one key
    what: str  #: what is wrong with it
    fix: str  #: what to write instead; may be empty


class TesseraError(Exception):
    """An error of the program: what went wrong, how to mend it, and the exit code."""

    exit_code: int = 1

    def __init__(self, what: str, fix: str = "", exit_code: int | None = None, problems: tuple[Problem, ...] = ()):
        super().__init__(what + (f"\n  fix: {fix}" if fix else ""))
        self.what = what
        self.fix = fix
        self.problems = list(problems)
        if exit_code is not None:
            self.exit_code = exit_code


class ConfigError(TesseraError):
    """A key, a flag or a combination of them; ``problems`` lists each with its place, key and fix."""

    exit_code = 2


class DataError(TesseraError):
    """Training or evaluation data that cannot be read."""

    exit_code = 3


class FormatError(TesseraError):
    """A checkpoint or another external file is missing, damaged or of another form."""

    exit_code = 4


class OutOfMemoryError(TesseraError):
    """The training does not fit into memory."""

    exit_code = 5


class CommunicationError(TesseraError):
    """A rank or host was lost, or ranks do not agree."""

    exit_code = 6


class NumericError(TesseraError):
    """The training diverged."""

    exit_code = 7


class SystemFailure(TesseraError):
    """A file, a disk, a library or a limit of the machine."""

    exit_code = 8


class IncompleteError(TesseraError):
    """The training finished, but something that was requested failed."""

    exit_code = 9


class BugError(TesseraError):
    """A bug in tessera."""

    exit_code = 70


class StoppedError(TesseraError):
    """The training was stopped by a signal after it had saved; the same call resumes it."""

    exit_code = 75


_CLASSES = {
    each.exit_code: each
    for each in (
        ConfigError,
        DataError,
        FormatError,
        OutOfMemoryError,
        CommunicationError,
        NumericError,
        SystemFailure,
        IncompleteError,
        BugError,
        StoppedError,
    )
}
_STOPPED = (130, 143)
_MANY = re.compile(r"^\d+ problems in the configuration:$")
_PLACE = re.compile(r"^(?P<place>.+?:\d+:\d+|--\S.*?|the defaults .+?): (?P<rest>.+)$", re.DOTALL)
_KEY = re.compile(r"^(?P<key>[A-Za-z_][\w.\[\]-]*): (?P<what>.+)$", re.DOTALL)


def _problem(text: str, fix: str) -> Problem:
    place, rest = "", text
    if found := _PLACE.match(text):
        place, rest = found["place"], found["rest"]
    if found := _KEY.match(rest):
        return Problem(place, found["key"], found["what"], fix)
    return Problem(place, "", rest, fix)


def _last_error(stderr: str) -> tuple[str, list[str]]:
    """The first line of the last error in the program's output, and the lines below it."""
    lines = stderr.splitlines()
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith("error: "):
            below = []
            for line in lines[at + 1 :]:
                if not line.startswith("  "):
                    break
                below.append(line)
            return lines[at][len("error: ") :], below
    return "", []


def _problems_of(lines: list[str]) -> list[Problem]:
    found: list[tuple[str, str]] = []
    for line in lines:
        fix = line.strip()
        if line.startswith("    ") and fix.startswith("fix: ") and found:
            found[-1] = (found[-1][0], fix[len("fix: ") :])
        else:
            found.append((line.strip(), ""))
    return [_problem(what, fix) for what, fix in found]


def error_of(exit_code: int, stderr: str) -> TesseraError:
    """The exception for a program that ended with this exit code and wrote this to standard error."""
    kind = _CLASSES.get(75 if exit_code in _STOPPED else exit_code, TesseraError)
    what, below = _last_error(stderr)
    if not what:
        tail = stderr.strip().splitlines()[-1:] or [f"the program ended with exit code {exit_code}"]
        return kind(tail[0], exit_code=exit_code)
    if _MANY.match(what):
        return kind(what + "\n" + "\n".join(below), exit_code=exit_code, problems=tuple(_problems_of(below)))
    fix = ""
    text = what
    for line in below:
        if line.strip().startswith("fix: "):
            fix = line.strip()[len("fix: ") :]
        elif fix:
            fix += "\n" + line.strip()
        else:
            text += "\n" + line.strip()
    problems = (_problem(what, fix),) if kind is ConfigError else ()
    return kind(text, fix, exit_code, problems)
