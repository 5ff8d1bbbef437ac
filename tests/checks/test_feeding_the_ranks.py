"""Under the checks: data sets, an optimizer, simulated machines, and loops that are wrong as the lab says."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import known_answers
import labs_support as support
import nbformat
import pytest
import torch

from checks.contracts import Broken
from checks.feeding_the_ranks import (
    dealing,
    epochs,
    evaluations,
    samplers,
    sources,
    streams,
    uneven_training,
    worker_numbers,
)
from checks.feeding_the_ranks.simulated_loader import MACHINES, Machine
from checks.verdicts import Wrong
from course import outline

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = support.ANSWERS / "feeding_the_ranks"
CELLS = [cell for cell in nbformat.read(outline.notebook("feeding_the_ranks", "solutions"), as_version=4).cells]
SEEDS = range(20)


# ---------------------------------------------------------------------- samplers
@pytest.mark.parametrize("seed", SEEDS)
def test_data_sets_are_shorter_longer_even_and_uneven_whatever_is_drawn(seed):
    cases = samplers.draw(random.Random(seed))
    assert {case["world size"] for case in cases} == {1, 2, 3, 4, 5} and {case["ranks"] for case in cases} == {1, 2}
    for size in (2, 3, 4, 5):
        lengths = {case["samples"] for case in cases if case["world size"] == size}
        assert any(length % size == 0 for length in lengths if length > samplers.MANY)
        assert any(length % size for length in lengths if length > samplers.MANY)
        assert size < 3 or any(length < size / 2 for length in lengths)
    assert 101 in {case["samples"] for case in cases if case["world size"] == 4}


def test_a_data_set_tells_its_length_and_nothing_else():
    data = dealing.Numbered(3)
    assert len(data) == 3 and vars(data) == {}
    with pytest.raises(Wrong, match="reads samples"):
        list(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_of_samples_are_small_large_and_none(seed):
    cases = evaluations.draw_counts(random.Random(seed))
    seen = [one for case in cases for _, one in case["counts"]]
    assert (
        max(seen) > 2**31
        and any(255 < one < 2**16 for one in seen)
        and all(0 <= c <= s for x in cases for c, s in x["counts"])
    )
    assert all(sum(one for _, one in case["counts"]) for case in cases)


# ---------------------------------------------------------------------- epoch bugs
@pytest.mark.parametrize("name", ["every_epoch", "resumed", "augmented"])
def test_the_loops_that_the_lab_shows_are_the_ones_that_its_check_refuses(name):
    def body(source, function):
        functions = [node for node in ast.parse(source).body if getattr(node, "name", "") == function]
        return [ast.dump(line) for line in functions[0].body] if functions else None

    path = ANSWERS / f"{name}.py"
    known_answers.load(path, [f"train_{name}"])
    (given,) = [one for one in known_answers._found if one.name == "as given"]
    text = known_answers.right_text(path)
    for old, new in given.change.items():
        text = text.replace(old, new)
    shown = [body(cell.source, f"broken_{name}") for cell in CELLS if f"def broken_{name}" in cell.source]
    assert shown == [body(text, f"train_{name}")]


def test_a_sample_hides_who_has_read_it_and_in_which_epoch():
    case = {"samples": 5, "seed": 3, "ranks": 1, "epochs": 2}
    data = epochs.Samples(case)
    first = data[2]
    data.set_epoch(1)
    assert epochs.decoded(case, [[0, [first, data[-1], 17]]]) == [(0, [(2, -1, False), (4, 1, False), None])]
    assert vars(data) == {"epoch": 1} and data.read_by_workers() == 0
    with pytest.raises(IndexError):
        data[5]


def test_the_same_order_in_two_epochs_is_told_and_what_is_missing():
    case = {"samples": 24, "seed": 3, "ranks": 2, "epochs": 2}
    data = epochs.Samples(case)
    orders = [random.Random(epoch).sample(range(24), 24) for epoch in range(2)]

    def seen(orders, rank):
        parts = [[order[rank::2][at : at + 4] for at in range(0, 12, 4)] for order in orders]
        return [[epoch, [data[index] for index in part]] for epoch, all_of in enumerate(parts) for part in all_of]

    def runs(orders):
        return [{"seen": seen(orders, rank), "reads": 24} for rank in range(2)]

    found = epochs.orders(case, runs(orders))
    assert found == {epoch: [order[0::2], order[1::2]] for epoch, order in enumerate(orders)}
    alike = epochs.orders(case, runs(orders[:1] * 2))
    assert isinstance(alike, Broken) and alike.clause == "value:alike"
    same = epochs.orders(case, runs(orders)[:1] * 2)
    assert isinstance(same, Broken) and same.clause == "value:same"
    shares = [random.Random(epoch).sample(range(0, 24, 2), 12) for epoch in range(2)]
    kept = epochs.orders(case, runs([[index + rank for index in one for rank in (0, 1)] for one in shares]))
    assert isinstance(kept, Broken) and kept.clause == "value:kept"
    often = epochs.orders(case, [run | {"reads": 48} for run in runs(orders)])
    assert isinstance(often, Broken) and often.clause == "value:often"


# ---------------------------------------------------------------------- uneven loaders
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_the_quick_optimizer_is_that_of_torch(decay):
    case = {"seed": 5, "type": "float64", "lr": 0.125, "momentum": 0.9, "weight decay": decay}
    models = [uneven_training.model_of(case) for _ in range(2)]
    mine = uneven_training.Optimizer(models[0], case, lambda over: None)
    real = torch.optim.SGD(models[1].parameters(), lr=0.125, momentum=0.9, weight_decay=decay)
    for step in range(5):
        for model, optimizer in zip(models, (mine, real), strict=True):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            x = torch.ones(3, model[0].in_features, dtype=torch.float64) + step
            model(x).square().sum().backward()
            optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


# ---------------------------------------------------------------------- numbers of workers
def test_what_does_not_fit_is_refused_in_the_words_of_a_check():
    machine = Machine(cores=8, ranks=2, worker_bytes=10, free_bytes=60)
    measure = worker_numbers._measured({**vars(machine), "log": []}, log := [])
    with pytest.raises(Wrong, match="do not fit into memory"):
        measure(4, 1)
    for wrong in ((-1, 5), (1.0, 5), (1, 0)):
        with pytest.raises(Wrong, match="measure takes whole numbers"):
            measure(*wrong)
    assert log == [] and len(measure(workers=1, batches=3)) == 3 and [workers for workers, _ in log] == [1]


def _true(machine: Machine) -> dict[int, float]:
    return {workers: machine.true_seconds(workers) for workers in range(machine.most + 1)}


def test_every_machine_has_one_clear_answer_and_no_rule_of_thumb_finds_all():
    right = {}
    for name, machine in MACHINES.items():
        true = _true(machine)
        right[name] = worker_numbers.within_tolerance(true)
        best = min(true.values())
        assert true[right[name]] <= 1.01 * best
        assert all(true[fewer] >= 1.1 * best for fewer in range(right[name]))
    assert len(set(right.values())) >= 5
    assert any(right[name] == 0 for name in right)
    assert [name for name in right if right[name] < MACHINES[name].most]


@pytest.mark.parametrize("workers", (1, 2, 4))
def test_some_machines_tell_5_percent_from_2_and_8(workers):
    will_do, will_not = (_true(worker_numbers._nearly(workers, ratio)) for ratio in (1.0275, 1.0725))
    assert 1.02 < will_do[workers] / min(will_do.values()) < 1.035
    assert 1.065 < will_not[workers] / min(will_not.values()) < 1.08
    assert worker_numbers.within_tolerance(will_do) == workers == worker_numbers.within_tolerance(will_not) - 1


@pytest.mark.parametrize("name", MACHINES)
def test_careful_measurements_find_the_answer_whatever_the_noise_and_the_pace(name):
    right = worker_numbers.within_tolerance(_true(MACHINES[name]))
    for seed in range(100, 120):
        machine = worker_numbers._like(MACHINES[name], random.Random(seed))
        means = {}
        for workers in range(machine.most + 1):
            rounds = max(workers, 1)
            seconds = machine.measure(workers, 24 * rounds)[4 * rounds :]
            means[workers] = sum(seconds) / len(seconds)
        assert worker_numbers.within_tolerance(means) == right


# ---------------------------------------------------------------------- streams
@pytest.mark.parametrize("seed", SEEDS)
def test_streams_have_no_few_and_many_workers_and_tails_of_ranks_and_of_workers(seed):
    cases = streams.draw(random.Random(seed))
    first = cases[0]
    assert (first["world size"], first["workers"], first["samples"], first["drop_last"]) == (4, 2, 20, False)
    assert {0, 1} < {case["workers"] for case in cases} | {1} and max(case["workers"] for case in cases) == 3
    assert {case["drop_last"] for case in cases} == {True, False}
    assert any(case["samples"] < case["world size"] * case["workers"] for case in cases)
    tails = [(case["samples"] % case["world size"], case["samples"] % (case["world size"] * max(case["workers"], 1)))
             for case in cases if case["drop_last"]]  # fmt: skip
    assert any(0 < of_ranks < of_workers for of_ranks, of_workers in tails)


def test_a_source_gives_one_sample_at_a_time_and_counts_who_reads():
    source = sources.Source(7, 5)
    assert len(source) == 5 and vars(source) == {} and sum(source.reads()) == 0
    assert len({source[0], source[4]}) == 2 and source[0] == source[0]
    assert source.reads() == [4, 0, 0, 0] and not source.talks()
    with pytest.raises(TypeError, match="one at a time"):
        source[0:2]
    for index in (-1, 5):
        with pytest.raises(IndexError, match="there is no sample"):
            source[index]


def _judged(case, **changes):
    firsts = [[epochs.code(1, index, 0, False) for index in range(rank, 20, 4)] for rank in range(4)]
    found = [{"iterable": True, "talks": False, "first": first, "reads": [0, 3, 2, 0]} for first in firsts]
    for one in found:
        one |= {"read": [0, 1, 2], "alone": one["first"], "beside": one["first"], "second": one["first"]}
    found[1] |= changes
    return [broken.clause for broken in streams.judge(case, [{"streams": found}])]


def test_what_a_stream_may_not_do_is_told_by_its_cause():
    case = {"world size": 4, "workers": 2, "samples": 20, "drop_last": False, "seed": 1}
    first = [epochs.code(1, index, 0, False) for index in range(1, 20, 4)]
    assert _judged(case) == []
    assert _judged(case, second=first[:-1]) == ["value:second"]
    assert _judged(case, beside=first[1:]) == ["value:beside"]
    assert _judged(case, read=[1, 2, 3]) == ["value:early"]
    assert _judged(case, reads=[0, 4, 1, 0]) == ["value:workers"]
    assert _judged(case, reads=[5, 0, 0, 0]) == ["value:reader"]
    assert _judged(case, reads=[0, 10, 10, 0]) == ["value:reads"]
    assert _judged(case, first=first[:-1]) == ["value:missing"]
    assert _judged(case, first=first * 2) == ["value:twice"]
    assert _judged(case, first=[0, *first[1:]]) == ["value:sample"]
    assert _judged(case, talks=True) == ["wire:other"]
