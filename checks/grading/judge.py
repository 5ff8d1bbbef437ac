"""Inside a sandbox: the checks of a lab judge what a learner has handed in.

The learner's functions run in rank processes that the checks start, never in this one. A verdict leaves through a
pipe that those processes do not have, with a secret that they do not know, and they cannot look into this process
(Linux). What they can do is end it: then there is no verdict, and ``grade.py`` goes on with the next exercise.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from checks.answers import Answer
from checks.framework import Exercise, exercises_in
from checks.grading.confine import hide_memory
from checks.verdicts import WRONG, Verdict


def main() -> None:
    """Read a request, judge."""
    hide_memory()
    request = json.load(sys.stdin)
    # No process that is started from here gets this end of the pipe.
    verdicts = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    with open(os.devnull, "r+") as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    exercises = {exercise.name: exercise for exercise in exercises_in(importlib.import_module(request["checks"]))}
    for name, file in request["handed_in"]:
        verdict = judge(exercises[name], Path(request["answers"], file))
        said = dataclasses.asdict(verdict) | {"exercise": name, "secret": request["secret"]}
        print(json.dumps(said), file=verdicts, flush=True)


def judge(exercise: Exercise, file: Path) -> Verdict:
    """The verdict on what one file holds."""
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if "refused" in record:
            return Verdict(WRONG, str(record["refused"]))
        answers = [Answer.from_json(*pair) for pair in zip(exercise.parameters, record["answers"], strict=True)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Verdict(WRONG, "what was handed in cannot be read: the notebook has changed the file.")
    return exercise.verdict(*answers)


if __name__ == "__main__":
    main()
