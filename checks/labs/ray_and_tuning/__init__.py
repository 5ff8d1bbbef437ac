"""The exercises of this lab: random search and halving, by hand and with Ray Tune.

random_searching.py   random_by_hand: one training for each trial, drawn as it should be
halving.py            halving_by_hand: how far each configuration is trained
tuning.py             random_with_tune and early_stopping, in Ray
searches.py           what every search is judged by: budget, samples, the best
notes.py              trainings in Ray's processes, which write down what they do
rays.py               a Ray for one judgement
"""

from __future__ import annotations

from typing import Any

from checks import exercise, run
from checks.engine import judge
from checks.labs.ray_and_tuning import halving, random_searching, tuning


@exercise(title="Random search", difficulty=1, minutes=20, official=random_searching.OFFICIAL)
def random_by_hand(random_search: Any) -> dict[str, Any]:
    """Judge ``random_search(objective, low, high, batch_sizes, trials, rng)``."""
    return judge(random_searching.OFFICIAL, random_searching.play, random_searching.CASES, random_search)


@exercise(title="Successive halving", difficulty=2, minutes=30, official=halving.OFFICIAL)
def halving_by_hand(successive_halving: Any) -> dict[str, Any]:
    """Judge ``successive_halving(configs, train, eta, first)``."""
    return judge(halving.OFFICIAL, halving.play, halving.cases, successive_halving)


@exercise(
    title="Random search with Ray Tune", difficulty=2, minutes=25, timeout=800, needs=("ray",), official=tuning.TUNE
)
def random_with_tune(tune_search: Any) -> dict[str, Any]:
    """Judge ``tune_search(objective, low, high, batch_sizes, trials, seed, storage)`` in three searches."""
    run(tuning.search, tune_search, tuning.SEARCHES, timeout=400)
    trials = sum(search.trials for search in tuning.SEARCHES)
    return {"searches": len(tuning.SEARCHES), "trials": f"{trials}, all of them in Ray"}


@exercise(title="Stop early with ASHA", difficulty=3, minutes=30, timeout=800, needs=("ray",), official=tuning.ASHA)
def early_stopping(asha_search: Any) -> dict[str, Any]:
    """Judge ``asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage)`` in two searches."""
    run(tuning.search, asha_search, tuning.STOPPED, timeout=400)
    trials = sum(search.trials for search in tuning.STOPPED)  # (how many epochs depends on which one reports first)
    return {"searches": len(tuning.STOPPED), "trials": f"{trials}, stopped at their rungs"}
