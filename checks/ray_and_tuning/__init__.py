"""The exercises of this lab: random search and halving, by hand and with Ray Tune.

random_searching.py   random_by_hand: samples.py says whether its samples are log-uniform and independent
halving.py            halving_by_hand: how far each configuration is trained
tune.py               random_with_tune and early_stopping in Ray; tune_verdicts.py judges what was seen
bookkeeping.py        every epoch is asked for, and counted, in the check's process; curves.py: their losses
ray_host.py, office.py    a Ray that runs while a check does; searches.py: what every search is judged by
"""

from __future__ import annotations

import contextlib
from typing import Any

from checks import exercise, run
from checks.core import judge
from checks.ray_and_tuning import halving, random_searching, ray_host, tune, tune_verdicts
from checks.ray_and_tuning.bookkeeping import Books


@exercise(title="Random search", difficulty=1, minutes=20, official=random_searching.OFFICIAL)
def random_by_hand(random_search: Any) -> dict[str, Any]:
    """Judge ``random_search(objective, low, high, batch_sizes, trials, rng)``."""
    return judge(random_searching.OFFICIAL, random_searching.play, random_searching.CASES, random_search)


@exercise(title="Successive halving", difficulty=2, minutes=35, official=halving.OFFICIAL)
def halving_by_hand(successive_halving: Any) -> dict[str, Any]:
    """Judge ``successive_halving(configs, train, eta, first)``."""
    return judge(halving.OFFICIAL, halving.play, halving.cases, successive_halving)


@exercise(title="Random search with Ray Tune", difficulty=2, minutes=25, timeout=800, needs=("ray",))
def random_with_tune(tune_search: Any) -> dict[str, Any]:
    """Judge ``tune_search(objective, low, high, batch_sizes, trials, seed, storage)`` in three searches."""
    run(tune.started, tune_search, 7)
    searches = tune.SEARCHES
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_host.running())
        books = [stack.enter_context(Books(tune.whole_training(one), one.trials)) for one in searches]
        paths = [book.path for book in books]
        with tune_verdicts.causes_first(searches, books):
            found = run(tune.run_searches, tune_search, ray.address, ray.storage, paths, searches, timeout=400)
    tune_verdicts.judge_searches(books, found)
    return {
        "searches": len(searches),
        "trials": f"{sum(search.trials for search in searches)}, all of them in Ray",
        "same seed": "same configurations",
        "best": "the best that was tried",
    }


@exercise(title="Stop early with ASHA", difficulty=3, minutes=30, timeout=800, needs=("ray",))
def early_stopping(asha_search: Any) -> dict[str, Any]:
    """Judge ``asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage)`` in two searches."""
    run(tune.started, asha_search, 8)
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_host.running())
        books = [stack.enter_context(Books(tune.LANDSCAPE, one.whole)) for one in tune.ASHAS]
        paths = [book.path for book in books]
        with tune_verdicts.causes_first(tune.ASHAS, books):
            found = run(tune.run_ashas, asha_search, ray.address, ray.storage, paths, tune.ASHAS, timeout=400)
    tune_verdicts.judge_ashas(books, found)
    # (How many epochs exactly depends on which trial reports first.)
    return {
        "searches": len(books),
        "trials": f"{sum(case.trials for case in tune.ASHAS)}, stopped at their rungs",
        "budget": f"less than the {tune.ASHA.whole} epochs of all",
        "best": "the best that was drawn",
    }
