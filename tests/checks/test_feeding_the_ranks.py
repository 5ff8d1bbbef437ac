"""Under the checks: its simulated loader, its reference training, and loops that are wrong as the lab says."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import labs_support as support
import nbformat
import pytest
import torch

from utils.checks import Wrong, feeding_the_ranks
from utils.checks.feeding_the_ranks import evaluations, samplers, uneven_loaders, worker_numbers
from utils.checks.feeding_the_ranks.uneven_loaders import Uneven
from utils.course import outline
from utils.training.simulated_loader import MACHINES, Machine

ROOT = Path(__file__).resolve().parents[2]
SOLUTION = outline.notebook("feeding_the_ranks", "solutions")
ANSWERS = support.ANSWERS / "feeding_the_ranks"
CELLS = [cell for cell in nbformat.read(SOLUTION, as_version=4).cells]


# ---------------------------------------------------------------------- samplers
class OfTorch(torch.utils.data.DistributedSampler):
    """torch's own sampler, with the arguments of the lab's."""

    def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
        super().__init__(dataset, world_size, rank, seed=seed, drop_last=drop_last)


def test_the_sampler_of_torch_does_all_that_the_lab_asks_for():
    for deal in feeding_the_ranks.TRAINING:
        samplers.judge_training(deal, samplers._dealt(OfTorch, deal))


def test_data_sets_are_shorter_longer_even_and_uneven():
    for world_size in feeding_the_ranks.WORLDS:
        lengths = {deal.length for deal in feeding_the_ranks.TRAINING if deal.world_size == world_size}
        assert 1 in lengths and any(length % world_size == 0 for length in lengths)
        assert world_size == 1 or any(length % world_size for length in lengths if length > samplers.MANY)
        assert world_size < 3 or any(length < world_size / 2 for length in lengths)


def test_the_text_of_the_lab_tells_the_right_counts():
    text = "\n".join(cell.source for cell in CELLS)
    assert (
        f"takes {len(feeding_the_ranks.TRAINING)} data sets on 1 to {max(feeding_the_ranks.WORLDS)} ranks, "
        "four epochs each" in " ".join(text.split())
    )
    assert "shares of 26, 25, 25 and 25" in text
    facts = samplers._dealt(OfTorch, samplers.Deal(101, 4))
    assert len(samplers._repeated_or_missing(samplers.Deal(101, 4), facts["epochs"][0])) == 3


@pytest.mark.parametrize("where", ["torch", "random", "numpy"])
def test_drawing_from_any_global_generator_is_seen(where):
    import numpy

    draws = {"torch": lambda: torch.rand(1), "random": random.random, "numpy": lambda: numpy.random.rand(1)}
    before = samplers.generators()
    draws[where]()
    after = samplers.generators()
    assert [name for name in after if after[name] != before[name]] == [where]


def test_one_accuracy_is_not_the_mean_of_all():
    for case in feeding_the_ranks.COUNTS[3][:1]:
        for result, sentence in ((0.55, "weighs as much"), (0.3, "is not right")):
            with pytest.raises(Wrong, match=sentence):
                evaluations.judge_accuracy(case, [{"result": result, "calls": []}] * 3, feeding_the_ranks.COUNT_BYTES)
        evaluations.judge_accuracy(case, [{"result": 0.5, "calls": []}] * 3, feeding_the_ranks.COUNT_BYTES)


# ---------------------------------------------------------------------- epoch bugs
@pytest.mark.parametrize("name", ["every_epoch", "resumed", "augmented"])
def test_the_loops_that_the_lab_shows_are_the_ones_that_its_check_refuses(name):
    def body(source, function):
        functions = [node for node in ast.parse(source).body if getattr(node, "name", "") == function]
        return [ast.dump(line) for line in functions[0].body] if functions else None

    refused = body((ANSWERS / name / "wrong_as_given.py").read_text(), f"train_{name}")
    assert refused in [body(cell.source, f"broken_{name}") for cell in CELLS if f"def broken_{name}" in cell.source]


# ---------------------------------------------------------------------- uneven loaders
def _with_torch(case: Uneven) -> torch.Tensor:
    """One process, one batch a step, the real optimizer."""
    model = uneven_loaders.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=uneven_loaders.LR, momentum=uneven_loaders.MOMENTUM)
    for step in range(case.steps):
        batches = [case.batch(rank, step) for rank, sizes in enumerate(case.sizes) if step < len(sizes)]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return uneven_loaders._weights(model)


ALL_CASES = [case for cases in feeding_the_ranks.UNEVEN.values() for case in cases]


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_reference_is_what_one_process_does_with_the_real_optimizer(case):
    torch.testing.assert_close(uneven_loaders.reference(case), _with_torch(case))


def test_every_known_mistake_gives_weights_of_its_own():
    found = [uneven_loaders.reference(feeding_the_ranks.SHOWN, way) for way in ("right", *uneven_loaders.WAYS)]
    for number, one in enumerate(found):
        assert not any(torch.allclose(one, other) for other in found[:number])


def test_what_ranks_noted_tells_who_has_left_and_who_waits(tmp_path):
    cases = [Uneven(((1,), (1,))), Uneven(((1, 1), (1,))), Uneven(((1,), (1,)))]
    for rank in range(2):
        (tmp_path / f"0.{rank}.calls").write_text("all_reduce of 8 bytes\n")
        (tmp_path / f"0.{rank}.ended").write_text("1")
    assert uneven_loaders.what_they_waited_for(str(tmp_path), cases) == ""
    (tmp_path / "1.0.calls").write_text("all_reduce of 8 bytes\nall_reduce of 120 bytes\n")
    (tmp_path / "1.1.calls").write_text("all_reduce of 8 bytes\n")
    assert uneven_loaders.what_they_waited_for(str(tmp_path), cases) == ""
    (tmp_path / "1.1.ended").write_text("1")
    told = uneven_loaders.what_they_waited_for(str(tmp_path), cases)
    assert "rank 1 leaves after its 1 batch, and rank 0 waits for it in an all_reduce of 120 bytes" in told
    (tmp_path / "1.1.ended").unlink()
    (tmp_path / "1.1.calls").write_text("all_reduce of 8 bytes\nbroadcast of 120 bytes\n")
    told = uneven_loaders.what_they_waited_for(str(tmp_path), cases)
    assert "number 2 is on rank 0 all_reduce of 120 bytes, on rank 1 broadcast of 120 bytes" in told


# ---------------------------------------------------------------------- numbers of workers
def test_what_does_not_fit_is_refused_in_the_words_of_a_check():
    machine = worker_numbers._JudgedMachine(cores=8, ranks=2, worker_bytes=10, free_bytes=60)
    with pytest.raises(Wrong, match="do not fit into memory"):
        machine.measure(4, 1)
    with pytest.raises(Wrong, match="the cores are shared"):
        worker_numbers._JudgedMachine(cores=8, ranks=2).measure(5, 1)
    for wrong in ((-1, 5), (1.0, 5), (1, 0)):
        with pytest.raises(Wrong, match="measure takes whole numbers"):
            machine.measure(*wrong)


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


@pytest.mark.parametrize("name", MACHINES)
def test_careful_measurements_find_the_answer_whatever_the_noise(name):
    right = worker_numbers.within_tolerance(_true(MACHINES[name]))
    for seed in range(100, 120):
        machine = Machine(**{**vars(MACHINES[name]), "seed": seed, "log": []})
        means = {}
        for workers in range(machine.most + 1):
            rounds = max(workers, 1)
            seconds = machine.measure(workers, 24 * rounds)[4 * rounds :]
            means[workers] = sum(seconds) / len(seconds)
        assert worker_numbers.within_tolerance(means) == right
