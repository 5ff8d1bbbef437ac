"""The exercises of this lab: random search and successive halving, by hand and with Ray Tune."""

from __future__ import annotations

import contextlib
from typing import Any

from utils.checks import exercise, run
from utils.checks.ray_and_tuning import halving, halving_verdicts, random_verdicts, ray_host, tune
from utils.checks.ray_and_tuning.bookkeeping import Books


@exercise(title="Random search", difficulty=1, minutes=20)
def random_by_hand(random_search: Any) -> dict[str, Any]:
    """Judge ``random_search(objective, low, high, batch_sizes, trials, rng)`` in five searches."""
    with contextlib.ExitStack() as stack:
        searches = random_verdicts.SEARCHES
        books = random_verdicts.open_books(stack, searches)
        paths = [book.path for book in books]
        results = run(random_verdicts.run_searches, random_search, searches, paths, timeout=40)
        random_verdicts.judge(searches, books, results)
    lowest = random_verdicts.LANDSCAPE.lowest(random_verdicts.EPOCHS)
    excess = results[0][1] - lowest
    assert excess < random_verdicts.CLOSE, "400 samples that are log-uniform come closer"
    return {
        "searches": len(searches),
        "trainings": f"{sum(search.trials for search in searches)}, one for each trial",
        "samples": "independent and log-uniform",
        "best loss": f"less than {random_verdicts.CLOSE} above the lowest there is",
    }


@exercise(title="Successive halving", difficulty=2, minutes=35)
def halving_by_hand(successive_halving: Any) -> dict[str, Any]:
    """Judge ``successive_halving(configs, train, eta, first)`` in eight searches."""
    cases = halving.HALVINGS
    with contextlib.ExitStack() as stack:
        books = [stack.enter_context(Books(case.landscape)) for case in cases]
        paths = [book.path for book in books]
        results = run(halving.run_halvings, successive_halving, cases, paths, timeout=40)
        halving_verdicts.judge(cases, books, results)
    rungs = halving.rungs_of(halving.MANY)
    whole = len(rungs[0].trials) * rungs[-1].epochs
    return {
        "searches": len(cases),
        "rungs of the first": ", ".join(f"{len(rung.trials)} to {rung.epochs}" for rung in rungs),
        "its budget": f"{books[0].epochs} epochs instead of {whole}",
        "its best": "the best of all",
    }


@exercise(title="Random search with Ray Tune", difficulty=2, minutes=25, timeout=500, needs=("ray",))
def random_with_tune(tune_search: Any) -> dict[str, Any]:
    """Judge ``tune_search(objective, low, high, batch_sizes, trials, seed, storage)`` in three searches."""
    run(tune.started, tune_search, 7)
    searches = tune.SEARCHES
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_host.running())
        books = random_verdicts.open_books(stack, searches)
        paths = [book.path for book in books]
        found = run(tune.run_searches, tune_search, ray.address, ray.storage, paths, timeout=250)
    tune.judge_searches(books, found)
    return {
        "searches": len(searches),
        "trials": f"{sum(search.trials for search in searches)}, all of them in Ray",
        "same seed": "same configurations",
        "best": "the best that was tried",
    }


@exercise(title="Stop early with ASHA", difficulty=3, minutes=30, timeout=500, needs=("ray",))
def early_stopping(asha_search: Any) -> dict[str, Any]:
    """Judge ``asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage)`` in two searches."""
    run(tune.started, asha_search, 8)
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_host.running())
        books = [stack.enter_context(Books(tune.LANDSCAPE)) for _ in tune.ASHAS]
        paths = [book.path for book in books]
        found = run(tune.run_ashas, asha_search, ray.address, ray.storage, paths, timeout=250)
    tune.judge_ashas(books, found)
    # (How many epochs exactly depends on which trial reports first.)
    return {
        "searches": len(books),
        "trials": f"{sum(case.trials for case in tune.ASHAS)}, stopped at their rungs",
        "budget": f"at most {tune.MOST_OF_BUDGET:.0%} of {tune.ASHA.whole} epochs",
        "best": "the best that was drawn",
    }
