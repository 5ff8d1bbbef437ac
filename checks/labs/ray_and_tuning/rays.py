"""A Ray for one judgement, in its own process, with which it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import ModuleType
from typing import Any

from checks.engine import refuse
from checks.engine.inside import Outcome
from checks.engine.verdicts import Wrong
from lessons.launchers import processes, ray_here

SETTINGS = ray_here.SETTINGS | {
    "RAY_TQDM_PATCH_PRINT": "0",  # Ray Train replaces Python's print
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "0",  # get_dataframe() reads their files
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.05",  # how soon Ray Train sees reports and deaths
}


@contextlib.contextmanager
def running(answer: Any, *modules: ModuleType) -> Iterator[str]:
    """In a fresh process: a Ray with two cores, connected, and a folder for experiments. Not for an answer that is not
    begun.

    Args:
        modules: of what the answer is given. Workers get them by value: an import of all checks would cost seconds.
    """
    code = getattr(answer.function, "__code__", None)
    if code and "NotImplementedError" in code.co_names:
        try:
            answer(*[None] * code.co_argcount)
        except Outcome as outcome:
            if outcome.record["kind"] == "not started":
                raise
    environment = processes.clean_environment()  # without what says that this is a rank
    os.environ.clear()
    os.environ.update(environment | SETTINGS)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            here = ray_here.start(cpus=2)
            import ray
    except (OSError, RuntimeError):
        raise Wrong("Ray did not start here, so nothing was judged: run the check again") from None
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    os.environ |= SETTINGS | {"HOME": str(here.storage / "home")}  # where Tune writes to if it gets no storage_path
    try:
        with contextlib.chdir(here.storage):
            yield str(here.storage)
    finally:
        ray_here.stop()


def still_running() -> None:
    """Behind a call: whether the Ray of the check is still there."""
    import ray

    refuse(not ray.is_initialized(), "Ray has run before your function, and is shut down by it: leave it running")
