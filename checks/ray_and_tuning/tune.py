"""The exercises with Ray Tune: the situations, and what a rank does in them."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from checks.core.judging import SEED
from checks.inside import Outcome
from checks.ray_and_tuning.bookkeeping import Curve, Objective, Training
from checks.ray_and_tuning.curves import Landscape
from checks.ray_and_tuning.searches import Search
from checks.verdicts import NotStarted, Wrong


@dataclass(frozen=True)
class Asha:
    """One call of the learner's function with a scheduler."""

    low: float
    high: float
    batch_sizes: tuple[int, ...]
    trials: int
    most_epochs: int
    seed: int

    def __str__(self) -> str:
        return f"{self.trials} trials of at most {self.most_epochs} epochs"

    @property
    def whole(self) -> int:
        """Epochs, if no trial is stopped."""
        return self.trials * self.most_epochs


EPOCHS = 30  # of a whole training
WHOLE = Landscape(diverges_at=0.5)


SEED_OF_CASES = os.environ.get(SEED, "0")


def _drawn() -> tuple[tuple[Search, ...], tuple[Asha, ...]]:
    """The searches; COURSE_SEED draws others.

    The first search has trials enough to tell half of the range, or of the batch sizes, from all. The other
    two are the same: so many batch sizes are hardly drawn alike by chance. (With a power of two of them numpy's
    generator draws learning rates that do not depend on how many they are.)
    """
    rng = random.Random(f"ray_and_tuning.tune {SEED_OF_CASES}")
    sizes = tuple(rng.sample(range(8, 129, 8), 8))
    many = Search(10.0 ** rng.randint(-7, -6), 1.0, sizes[:2], 25, rng.randrange(1000))
    few = Search(1e-3, 0.1, sizes, 3, many.seed + 1)
    asha = Asha(10.0 ** rng.randint(-5, -4), 0.2, sizes[:4], 18, 9, rng.randrange(1000))
    small = Asha(1e-3, 0.1, sizes, 3, 3, asha.seed + 1)
    return (many, few, few), (asha, small, small)


def whole_training(search: Search) -> Curve:
    """The loss at the end. In a large search the first trial diverges; it is one of two that ask first."""
    asked = itertools.count()
    return lambda config, _: math.nan if search.trials > 3 and next(asked) < 2 else WHOLE(config, EPOCHS)


PROCESSES = 4  # for all trials of a search; two run at a time, and one that has ended may be replaced


ETA = 3
SEARCHES, ASHAS = _drawn()
SEARCH, ASHA = SEARCHES[0], ASHAS[0]
LANDSCAPE = Landscape(ripple=0.4)


# --- what a rank does ------------------------------------------------------------------------------------------


def started(answer: Any, number_of_arguments: int) -> bool:
    """Raises NotStarted if the function does nothing yet. Found out without Ray, which takes seconds to start.

    Raises:
        Wrong: it uses the course's own code.
    """
    from checks.contracts import events  # imports torch, which the notebook's kernel need not wait for

    sys.modules.setdefault("ray", None)  # an import of it ends the function
    if sys.modules["ray"] is not None:
        sys.modules["ray"].init = _it_has_started
    try:
        answer(_it_has_started, *[1] * (number_of_arguments - 1))
    except BaseException as error:
        if isinstance(error, NotStarted) or getattr(error, "record", {}).get("kind") == "not started":
            raise
    for module in sorted(events.held_by(answer.function)[1]):
        raise Wrong(f"{answer.name} uses {module}: the course's own code is no answer, write it yourself")
    return True


def _it_has_started(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def connected(address: str, storage: str) -> Iterator[Callable[[Any], None]]:
    """In a rank: connected to a Ray that runs already, quietly. Gives what to call behind each call of an answer."""
    from lessons.launchers import ray_here

    os.environ.update(ray_here.SETTINGS)
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "0"  # get_dataframe() reads their files
    os.environ["RAY_TQDM_PATCH_PRINT"] = "0"  # Ray Train, and a Ray that an answer starts, replace Python's print
    os.environ["HOME"] = f"{storage}/home"  # where Tune writes to if it is given no storage_path
    with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
        import ray
        from ray import tune  # noqa: F401

        from checks.contracts.surroundings import changed  # imports torch

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray").setLevel(logging.ERROR)
    here = tempfile.mkdtemp(dir=storage)

    def leaves_all(answer: Any) -> None:
        if not ray.is_initialized() or ray.get_runtime_context().gcs_address != address:
            why = "does not go on behind it: leave it running, and use no Ray of your own"
            raise Wrong(f"the Ray that has run before {answer.name} {why}")
        for what, _, now in changed(before, _lasting(here)):
            raise Wrong(f"{answer.name} leaves {what} other than before ({now}): put back what you change")

    try:
        with contextlib.chdir(here):
            before = _lasting(here)
            yield leaves_all
    finally:
        ray.shutdown()


def _lasting(folder: str) -> dict[str, Any]:
    """What outlives a call of an answer, though it is no part of Ray. (Seeds may be set: Tune may draw with them.)"""
    from checks.contracts.surroundings import surroundings

    found = surroundings()
    lasting = ("grad mode", "torch's defaults", "the working folder")
    return {"the files in the working folder": sorted(os.listdir(folder))} | {name: found[name] for name in lasting}


def run_searches(
    tune_search: Any, address: str, storage: str, paths: Sequence[str], searches: Sequence[Search]
) -> dict[str, Any]:
    """In a rank: what the learner's function returns for each search, and what Tune has written down of it."""
    arguments = [(one.low, one.high, list(one.batch_sizes), one.trials, one.seed) for one in searches]
    return _run(tune_search, address, storage, map(Objective, paths), arguments)


def run_ashas(
    asha_search: Any, address: str, storage: str, paths: Sequence[str], cases: Sequence[Asha]
) -> dict[str, Any]:
    """In a rank: the same with a scheduler."""
    arguments = [(one.low, one.high, list(one.batch_sizes), one.trials, one.most_epochs, one.seed) for one in cases]
    return _run(asha_search, address, storage, map(Training, paths), arguments)


def _run(answer: Any, address: str, storage: str, asked: Iterable[Any], arguments: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"results": [], "recorded": [], "errors": [], "reports": [], "pid": os.getpid()}
    with connected(address, storage) as leaves_all:
        for one, others in zip(asked, arguments, strict=True):
            folder = tempfile.mkdtemp(dir=storage)
            try:
                found["results"].append(answer(one, *others, folder))
            except Outcome as outcome:
                if error := first_error(folder):  # the cause of what has come out
                    outcome.record["sentence"] = f"a trial has raised {error.rstrip('.')}."
                raise
            leaves_all(answer)
            found["recorded"].append(trials_recorded(folder))
            found["errors"].append(first_error(folder))
            found["reports"].append(reports_recorded(folder))
    return found


def first_error(storage: str) -> str:
    """What a trial has raised, as Tune has written it down in a folder of experiments."""
    for file in sorted(Path(storage).rglob("error.txt")):
        if lines := file.read_text(encoding="utf-8").strip().splitlines():
            return lines[-1].strip()[:200]
    return ""


def trials_recorded(storage: str) -> int:
    """How many trials Tune has written down in a folder of experiments."""
    states = Path(storage).glob("*/experiment_state-*.json")
    return sum(len(json.loads(state.read_text(encoding="utf-8")).get("trial_data", [])) for state in states)


def reports_recorded(storage: str) -> int:
    """How many reports of all trials Tune has written down there."""
    return sum(file.read_text(encoding="utf-8").count("\n") for file in Path(storage).glob("*/*/result.json"))
