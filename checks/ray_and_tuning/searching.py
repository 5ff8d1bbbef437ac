"""Exercise 1: ``random_search(objective, low, high, batch_sizes, trials, rng)``, on functions that are drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.ray_and_tuning import searches
from checks.ray_and_tuning.bookkeeping import Call
from checks.ray_and_tuning.samples import judge_samples
from checks.ray_and_tuning.searches import Search
from checks.verdicts import Wrong

MANY = 1_000  # trials of the search whose samples are judged
RUNS = ("one seed", "the same seed", "another seed", "the same generator, further on")


def draw(rng: random.Random) -> list[Case]:
    """The first search has many samples; the losses of the second are very large, those of the last negative."""
    cases = []
    for trials in (MANY, rng.randint(8, 30), 1, rng.randint(3, 60)):
        low, decades, most_sizes = 10 ** rng.uniform(-6, -2), rng.uniform(0.3, 5), 3
        if trials == MANY:  # rates that are rounded to some digits, and mistakes within a power of ten, are seen
            low, decades, most_sizes = 10 ** rng.uniform(-6, -5), rng.uniform(3, 5), 5
        low = float(f"{low:.3g}")
        sizes = rng.sample([4, 8, 12, 16, 32, 48, 64, 100, 128], rng.randint(3 if trials == MANY else 2, most_sizes))
        more: dict[str, Any] = {"scale": rng.choice((1, 1000, 1e-3)), "offset": rng.choice((0, 0, -5, 200))}
        more |= {"digits": rng.choice((1, 9))}
        if len(cases) == 1:
            more |= {"scale": 1e9, "offset": 10.0 ** rng.randint(12, 15)}
        elif len(cases) == 3:
            more |= {"scale": 1e-3, "offset": -5, "digits": 9}
        more |= {"diverges": trials > 1 and (len(cases) == 1 or rng.random() < 0.7), "best": rng.random()}
        case = {"ranks": 1, "trials": trials, "low": low, "high": float(f"{low * 10**decades:.3g}")}
        cases.append(case | {"batch sizes": str(tuple(sizes)), "seed": rng.getrandbits(30), "of": [more]})
    return cases


def search_of(case: Case) -> Search:
    sizes = tuple(int(one) for one in case["batch sizes"].strip("(,)").split(","))
    return Search(case["low"], case["high"], sizes, case["trials"], case["seed"])


def loss_of(case: Case, config: dict[str, float], number: int) -> float:
    """Of a whole training; now and then nan, the first of all too. Losses may be negative, or very large."""
    (function,), search = case["of"], search_of(case)
    where = searches.place(search, max(config["lr"], 1e-300))
    if function["diverges"] and (number == 0 or (case["trials"] > 2 and where > 0.9)) and number != 1:
        return math.nan
    size = search.batch_sizes.index(config["batch_size"]) if config["batch_size"] in search.batch_sizes else 0
    loss = (where - function["best"]) ** 2 + 0.1 * size
    return function["scale"] * round(loss, function["digits"]) + function["offset"]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    search, facts["runs"] = search_of(case), []
    rng = random.Random(case["seed"])
    for run in RUNS if case["trials"] > 1 else RUNS[:1]:
        if run in RUNS[1:3]:
            rng = random.Random(case["seed"] + (run == RUNS[2]))
        log: list[Any] = []
        facts["runs"].append({"log": log})
        result = watch.call(
            "random_search",
            objective=_objective(case, log),
            low=search.low,
            high=search.high,
            batch_sizes=list(search.batch_sizes),
            trials=search.trials,
            rng=rng,
        )
        facts["runs"][-1]["result"] = result
        if case["trials"] == MANY:
            break


def _objective(case: Case, log: list[Any]) -> Callable[[dict[str, float]], float]:
    """``objective``. What it knows is inside a generator, where nobody sees it who does not look at frames."""
    asked = _trainings(case, log)
    next(asked)

    def objective(config: dict[str, float]) -> float:
        found = asked.send(config)
        if isinstance(found, Wrong):
            raise found
        return found

    return objective


def _trainings(case: Case, log: list[Any]) -> Generator[Any, Any, None]:
    found = None
    while True:
        config = yield found
        if isinstance(config, dict):
            config = {name: one.item() if hasattr(one, "item") else one for name, one in config.items()}
        if not searches.is_config(config):
            found = Wrong(f"a configuration is a dict of two numbers, lr and batch_size, not {str(config)[:80]}")
        elif len(log) > 10 * case["trials"] + 100:
            found = Wrong(f"objective was called {len(log)} times for {case['trials']} trials: does the search end?")
        else:
            found = loss_of(case, config, len(log))
            log.append([config["lr"], config["batch_size"], found])


def _calls(run: Facts) -> list[Call]:
    return [Call(n, {"lr": lr, "batch_size": size}, 1, 1, loss, 0) for n, (lr, size, loss) in enumerate(run["log"])]


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first thing that is not as it has to be."""
    runs, search = world[0]["runs"], search_of(case)
    for number, run in enumerate(runs):
        calls = _calls(run)
        found = [*searches.judge_budget(search, calls), *searches.judge_range(search, calls)]
        if number and len(calls) < search.trials:
            words = "a later search trains less: is something kept from one call to the next?"
            found = [Broken("value:kept", words, f"{len(calls)} trainings", search.trials)]
        if not found and case["trials"] == MANY:
            found = list(judge_samples(search, calls))
        if not found and "result" in run:
            found = list(searches.judge_best(calls, run["result"]))
        if found:
            yield found[0].at(call=number)
            return
    if len(runs) == len(RUNS):
        first, again, other, further = ([call.config for call in _calls(run)] for run in runs)
        if first != again:
            words = (
                "two generators with the same seed make different searches: draw with rng, and with no other generator"
            )
            yield Broken("value:seed", words, str(first[0]), str(again[0]))
        elif first == other or other == further:
            words = "another seed" if first == other else "a generator that was used before"
            words += " makes the same search: draw with the rng that is given, make none yourself"
            yield Broken("value:own", words)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {
        "searches": sum(len(world[0]["runs"]) for _, world in played),
        "trainings": f"{sum(len(run['log']) for _, world in played for run in world[0]['runs']):,}, one for each trial",
        "samples": "independent and log-uniform",
        "returned": "the best that was tried",
    }


CONTRACT = Contract(
    name="ray_and_tuning.random_by_hand",
    rules={"random_search": Rules(changes=("rng.*",))},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("around:Python's random numbers", "{}: rng is a generator of its own, draw with it and with nothing else"),
        ("around:numpy's random numbers", "{}: draw with rng and with nothing else"),
        ("around:torch's random numbers", "{}: draw with rng and with nothing else"),
    ),
    figures=figures,
)
