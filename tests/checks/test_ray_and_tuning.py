"""Under the checks: books that count every epoch, statistics that let right samples pass, and a Ray that ends."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest

from checks import Wrong, ray_and_tuning, run
from checks.ray_and_tuning import (
    halving,
    random_searching,
    ray_host,
    samples,
    searches,
    tune,
    tune_verdicts,
)
from checks.ray_and_tuning.bookkeeping import Books, Call, Objective, Training
from checks.ray_and_tuning.curves import START, Landscape
from course import outline
from lessons.launchers.processes import clean_environment

SOLUTION = outline.notebook("ray_and_tuning", "solutions")
CELLS = nbformat.read(SOLUTION, as_version=4).cells
CONFIG = {"lr": 0.01, "batch_size": 32}
QUIET = {"errors": [""] * 3, "reports": [999] * 3, "pid": 1}  # what else is found of three searches


# ---------------------------------------------------------------------- the function
def test_a_loss_falls_with_the_epochs_and_never_below_the_lowest():
    land = Landscape()
    losses = [land(CONFIG, epochs) for epochs in range(1, 40)]
    assert losses == sorted(losses, reverse=True) and losses[0] < START
    for lr in (1e-4, 0.005, 0.02, 0.3):
        for size in (8, 32, 64):
            assert land({"lr": lr, "batch_size": size}, 20) >= land.lowest(20)


def test_curves_cross_only_where_they_should():
    slow, quick = {"lr": 0.02, "batch_size": 32}, {"lr": 0.1, "batch_size": 32}
    assert all(Landscape()(slow, epochs) < Landscape()(quick, epochs) for epochs in range(1, 50))
    crossing = Landscape(crossing=1.2, pace=0.08)
    assert crossing(slow, 1) > crossing(quick, 1) and crossing(slow, 60) < crossing(quick, 60)


def test_a_training_can_diverge_at_once_or_later_and_it_can_crash():
    land = Landscape(diverges_at=0.1, largest_batch=64)
    assert math.isfinite(land({"lr": 0.2, "batch_size": 32}, 1)) and math.isnan(land({"lr": 0.2, "batch_size": 32}, 2))
    assert math.isnan(land({"lr": 1.0, "batch_size": 32}, 1)) and math.isnan(land({"lr": -1.0, "batch_size": 32}, 1))
    with pytest.raises(MemoryError):
        land({"lr": 0.01, "batch_size": 128}, 1)


# ---------------------------------------------------------------------- the books
def _train_in_a_rank(path: str) -> tuple:
    train = Training(path)
    loss, checkpoint = train(CONFIG, 2)
    return os.getpid(), loss, train(CONFIG, 3, checkpoint)[0], Objective(path)(CONFIG)


def test_every_epoch_is_in_the_books_whichever_process_asked():
    land = Landscape()
    with Books(land) as books:
        pid, two, five, one = run(_train_in_a_rank, books.path)
    assert [two, five, one] == [land(CONFIG, epochs) for epochs in (2, 5, 1)]
    assert [(call.trial, call.epochs, call.total) for call in books.calls] == [(0, 2, 2), (0, 3, 5), (1, 1, 1)]
    assert books.epochs == 6 and len(books.trials) == 2
    assert {call.pid for call in books.calls} == {pid if sys.platform == "linux" else 0}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (({"lr": 1.0},), "a dict with lr and batch_size"),
        (({"lr": "high", "batch_size": 1},), "are numbers"),
        ((CONFIG, 0), "at least 1"),
        ((CONFIG, 1.5), "at least 1"),
        ((CONFIG, 10**7), "does the search end"),
        ((CONFIG, 1, "mine"), "none that train has returned"),
        ((CONFIG, 1, "trial 7 after 2 epochs"), "none that train has returned"),
        (({"lr": 0.5, "batch_size": 32}, 1, "trial 0 after 1 epochs"), "of another configuration"),
        ((CONFIG, 1, "trial 0 after 0 epochs"), "an old checkpoint"),
    ],
    ids=str,
)
def test_a_call_that_makes_no_sense_is_refused_and_costs_nothing(arguments, sentence):
    with Books(Landscape()) as books:
        train = Training(books.path)
        train(CONFIG)
        with pytest.raises(Wrong, match=sentence):
            train(*arguments)
    assert len(books.calls) == 1 and sentence in books.refused[0]


def test_a_crash_costs_its_epochs_and_is_a_runtime_error():
    with Books(Landscape(largest_batch=16)) as books, pytest.raises(RuntimeError, match="out of memory"):
        Training(books.path)(CONFIG, 3)
    assert books.epochs == 3 and books.trials[0].crashed


# ---------------------------------------------------------------------- random search
MANY = searches.Search(1e-5, 1.0, (16, 32, 64, 128), 1000, seed=1)


def _calls(search: searches.Search, draw, seed: int) -> list[Call]:
    rng = random.Random(seed)
    found = []
    for number in range(search.trials):
        lr, size = draw(search, rng, number)
        found.append(Call(number, {"lr": lr, "batch_size": size}, 1, 1, 1.0, 0))
    return found


def _right(search, rng, number):
    return search.low * (search.high / search.low) ** rng.random(), rng.choice(search.batch_sizes)


def test_right_samples_pass_with_every_seed():
    for search in (MANY, *tune.SEARCHES[:2], *tune.ASHAS[:2]):
        for seed in range(300):
            assert not list(samples.judge_samples(search, _calls(search, _right, seed)))


def _edges(search, rng, number):
    return _right(search, rng, number)[0], search.batch_sizes[round(rng.uniform(0, len(search.batch_sizes) - 1))]


@pytest.mark.parametrize(
    ("draw", "clause"),
    [
        (lambda s, rng, n: (rng.uniform(s.low, s.high), rng.choice(s.batch_sizes)), "uniform"),
        (lambda s, rng, n: (s.low * (s.high / s.low) ** rng.random() ** 2, rng.choice(s.batch_sizes)), "uneven"),
        (lambda s, rng, n: (s.low * (s.high / s.low) ** ((n + rng.random()) / s.trials), 16), "grid"),
        (lambda s, rng, n: (_right(s, rng, n)[0], 16), "sizes"),
        (_edges, "sizes"),
        (lambda s, rng, n: (_right(s, rng, n)[0], s.batch_sizes[n % 4]), "turn"),
        (lambda s, rng, n: (_right(s, rng, n)[0], s.batch_sizes[n * 4 // s.trials]), "turn"),
    ],
    ids=["uniform", "squared", "strata", "one size", "edges half as likely", "in turn", "in blocks"],
)
def test_wrong_samples_are_seen_with_every_seed(draw, clause):
    for seed in range(30):
        assert [one.clause for one in samples.judge_samples(MANY, _calls(MANY, draw, seed))] == [f"value:{clause}"]


@pytest.mark.parametrize(
    ("draw", "clauses"),
    [
        (lambda s, rng, n: (s.low * (s.high / s.low) ** (rng.random() / 2), rng.choice(s.batch_sizes)), "hole uneven"),
        (lambda s, rng, n: (s.high * (s.low / s.high) ** (rng.random() / 2), rng.choice(s.batch_sizes)), "hole uneven"),
        (lambda s, rng, n: (rng.uniform(s.low, s.high), rng.choice(s.batch_sizes)), "uniform"),
        (lambda s, rng, n: (_right(s, rng, n)[0], s.batch_sizes[0]), "sizes"),
        (lambda s, rng, n: (float(f"{_right(s, rng, n)[0]:.1e}"), rng.choice(s.batch_sizes)), "rounded"),
    ],
    ids=["the lower half", "the upper half", "uniform", "one size", "two digits"],
)
def test_the_trials_of_tune_are_enough_to_see_which_part_is_never_drawn(draw, clauses):
    for seed in range(30):
        (found,) = samples.judge_samples(tune.SEARCH, _calls(tune.SEARCH, draw, seed))
        assert found.clause.removeprefix("value:") in clauses.split()


# ---------------------------------------------------------------------- Ray
def test_an_exercise_that_is_not_started_does_not_start_ray(monkeypatch):
    def refuse():
        raise AssertionError("Ray was started")

    def nothing(*_):
        raise NotImplementedError

    monkeypatch.setattr(ray_host, "Host", refuse)
    assert ray_and_tuning.random_with_tune.verdict(nothing).state == "not started"
    assert ray_and_tuning.early_stopping.verdict(nothing).state == "not started"


def _listening_host() -> None:
    host = ray_host.Host()
    print(json.dumps([host.address, host.storage, host._process.pid]), flush=True)
    time.sleep(600)


def test_ray_and_its_folder_go_when_the_process_that_uses_it_is_killed():
    program = "from test_ray_and_tuning import _listening_host; _listening_host()"
    environment = clean_environment()
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), environment["PYTHONPATH"]))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as user:
        try:
            _, storage, pid = json.loads(user.stdout.readline())
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        finally:
            user.send_signal(signal.SIGKILL)
    assert len(family) > 3
    _, alive = psutil.wait_procs(family, timeout=200)
    assert alive == [] and not Path(storage).exists()


def test_rays_that_start_at_the_same_moment_all_come_up():
    with ThreadPoolExecutor(3) as threads:
        hosts = list(threads.map(lambda _: ray_host.Host(), range(3)))  # Wrong: one did not start
    try:
        assert len({host.address for host in hosts}) == 3 and all(host.alive for host in hosts)
    finally:
        for host in hosts:
            host.stop()


def test_after_a_check_that_fails_ray_is_stopped_and_after_a_good_one_it_is_kept():
    with ray_host.running() as first:
        pass
    with ray_host.running() as second:
        assert second is first
    with pytest.raises(Wrong), ray_host.running() as third:
        assert third is first
        family = psutil.Process(first._process.pid).children(recursive=True)
        raise Wrong("a trial that never ends")
    _, left = psutil.wait_procs(family, timeout=30)  # (what has ended is a zombie until somebody asks for its status)
    assert len(family) > 3 and not first.alive and not left
    assert ray_host._idle is None


def test_the_rule_that_the_lab_shows_is_that_of_rays_scheduler():
    from types import SimpleNamespace

    from ray.tune.schedulers.async_hyperband import _Bracket

    names: dict = {"math": math}
    exec(next(cell.source for cell in CELLS if cell.source.startswith("def goes_on")), names)
    for seed in range(20):
        rng = random.Random(seed)
        losses = [rng.random() for _ in range(30)]
        bracket = _Bracket(min_t=1, max_t=9, reduction_factor=3, s=0)
        for number, loss in enumerate(losses):
            ray_says = bracket.on_result(SimpleNamespace(trial_id=str(number)), 1, -loss) == "CONTINUE"
            assert names["goes_on"](loss, losses[:number]) == ray_says


def _search_books() -> tuple[list[Books], dict]:
    found = [Books(tune.whole_training(one)) for one in tune.SEARCHES]
    results = []
    for search, books in zip(tune.SEARCHES, found, strict=True):
        rng = random.Random(search.seed)
        for number in range(search.trials):
            lr, size = _right(search, rng, number)
            books._train({"lr": lr, "batch_size": size}, 1, None, pid=100 + number % 2)
        best = min((call for call in books.calls if call.loss == call.loss), key=lambda call: call.loss)
        results.append((best.config, best.loss))
    return found, {"results": results, "recorded": [one.trials for one in tune.SEARCHES], **QUIET}


def test_each_thing_that_a_search_with_tune_must_do_is_looked_at():
    tune_verdicts.judge_searches(*_search_books())
    books, found = _search_books()
    with pytest.raises(Wrong, match="must be in storage"):
        tune_verdicts.judge_searches(books, found | {"recorded": [0, 0, 0]})
    for number, call in enumerate(books[0].calls):
        call.pid = 100 + number
    with pytest.raises(Wrong, match="reuse_actors=True"):
        tune_verdicts.judge_searches(books, found)
    del books[0].calls[1:]
    with pytest.raises(Wrong, match="num_samples says how many"):
        tune_verdicts.judge_searches(books, found)
    books, found = _search_books()
    config, loss = max(
        ((call.config, call.loss) for call in books[0].calls if call.loss == call.loss), key=lambda pair: pair[1]
    )
    with pytest.raises(Wrong, match="the highest loss wins"):
        tune_verdicts.judge_searches(books, found | {"results": [(config, loss), *found["results"][1:]]})
    books[0].calls[-1].pid = 1
    with pytest.raises(Wrong, match="1 of 25 trainings ran in your function's own process"):
        tune_verdicts.judge_searches(books, found)


def _asha_books(totals: list[int], calls: int | None = None, case: tune.Asha = tune.ASHA, place: float = 0.4) -> Books:
    books = Books(tune.LANDSCAPE)
    for number, (total, config) in enumerate(zip(totals, _best_first(case, place), strict=False)):
        loss, checkpoint = 0.0, None
        for _ in range(calls or total):
            answer = books._train(config, total // (calls or total), checkpoint, pid=100 + number % 2)
            loss, checkpoint = answer["loss"], answer["checkpoint"]
        books.best = books.best if number else (config, loss)
    return books


def _best_first(case: tune.Asha, place: float) -> list[dict]:
    ratio, sizes = case.high / case.low, case.batch_sizes
    rates = [case.low * ratio ** ((number + place) / case.trials) for number in range(case.trials)]
    found = [{"lr": rate, "batch_size": sizes[number % len(sizes)]} for number, rate in enumerate(rates)]
    return sorted(found, key=lambda config: tune.LANDSCAPE(config, case.most_epochs))


STOPPED = [9, *[1] * 17]  # each is worse than all before it


@pytest.mark.parametrize(
    ("totals", "calls", "sentence"),
    [
        ([9] * 18, None, "no trial is stopped early"),
        ([9] * 18, 1, "all its epochs at once"),
        ([3] * 18, None, "no trial is trained to the end"),
        ([9, 4, *[1] * 16], None, "rungs are at 1, 3, 9"),
        ([1, 9, *[1] * 16], None, "against the rule"),
        ([9] * 12 + [1] * 6, None, "against the rule"),
        ([9, 9, 1], None, "not as many trials"),
        ([10, *[1] * 17], None, "too many epochs"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_a_scheduler_must_do_is_looked_at(totals, calls, sentence):
    books, small = _asha_books(totals, calls), _asha_books([3, 1, 1], case=tune.ASHAS[1])
    found = {"results": [books.best, small.best, small.best], "recorded": [18, 3, 3], **QUIET}
    with pytest.raises(Wrong, match=sentence):
        tune_verdicts.judge_ashas([books, small, small], found)


def test_a_scheduler_that_does_it_right_passes():
    small = _asha_books([3, 1, 1], case=tune.ASHAS[1], place=0.3)
    books = [_asha_books(STOPPED), small, small]
    found = {"results": [book.best for book in books], "recorded": [18, 3, 3], **QUIET}
    tune_verdicts.judge_ashas(books, found)
    alike = _asha_books([3, 1, 1], case=tune.ASHAS[1])  # its places are three of the 18
    with pytest.raises(Wrong, match="another seed makes the same draws"):
        results = [book.best for book in (books[0], alike, alike)]
        tune_verdicts.judge_ashas([books[0], alike, alike], found | {"results": results})
    with pytest.raises(Wrong, match="must be in storage"):
        tune_verdicts.judge_ashas(books, found | {"recorded": [0, 3, 3]})
    for call in books[0].calls:
        call.pid = 1
    with pytest.raises(Wrong, match="let Tune run them"):
        tune_verdicts.judge_ashas(books, found)


# ---------------------------------------------------------------------- the text
def test_the_text_of_the_lab_tells_the_right_counts():
    text = " ".join("\n".join(cell.source for cell in CELLS).split())
    assert f"Of a search of {max(case['trials'] for case in random_searching.CASES):,} trials the samples" in text
    table = halving.play(halving.cases(random.Random(), 0), *halving.OFFICIAL.functions())
    assert f"{table['epochs in all']} epochs instead of 729" in text
    trials = sum(search.trials for search in tune.SEARCHES)
    assert f"{trials} trials in {len(tune.SEARCHES)} searches" in text
    assert f"at most {tune.PROCESSES} processes" in text
    case = tune.ASHA
    assert f"{case.trials} trials of at most {case.most_epochs} epochs, that is {case.whole}" in text
