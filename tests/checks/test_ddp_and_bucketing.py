"""Under the checks of the lab on DistributedDataParallel: models on which mistakes show, torch's buckets."""

from __future__ import annotations

import random
import sys

import labs_support as support
import nbformat
import pytest
import torch
import torch.distributed as dist

from checks import ddp_and_bucketing
from checks.contracts import scenery
from checks.ddp_and_bucketing import bucket_plans, bucketing, finding_unused, overlapping
from checks.ddp_and_bucketing.bucket_plans import Weight
from checks.framework import exercises_in
from course import outline

SOLUTION = outline.notebook("ddp_and_bucketing", "solutions")
EXERCISES = {exercise.name: exercise for exercise in exercises_in(ddp_and_bucketing)}
SEEDS = range(12)
# The ways in which checks of this course were once fooled, each with answers to this lab that try it.
CLASSES = {
    "side effects on what was passed in": ("eval", "untied", "a history is kept", "others' hooks are removed",
                                           "gradients cleared at the start", "a parameter is thawed", "other memory"),
    "one size only": ("three ranks always", "at most three ranks", "two ranks always", "a flag of the class"),
    "tolerance and number types": ("in float32", "in half precision", "in float16", "flags that overflow"),
    "channels that nobody watches": ("a child process", "a file", "the store as a channel", "past torch.distributed",
                                     "a group in every step", "in a thread"),
    "luck of the clock taken for order": ("never waits", "a sleep in place of a wait", "divides what travels"),
    "a reference taken after the answer has run": ("parameters nudged", "momentum of its own"),
    "ready-made answers": ("the library", "the course's own module", "frames are read",
                           "the judge's functions are patched"),
    "exceptions": ("back after some exceptions only", "swallows the exception", "raises on one rank", "never ends"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
def test_every_way_to_fool_a_check_is_tried_on_this_lab(kind):
    tried = {known.name for one in EXERCISES.values() for known in support.answers_in(support.ANSWERS, one)}
    assert set(CLASSES[kind]) - tried == set()


# ---------------------------------------------------------------------- models
def _weights(seed: int) -> list[Weight]:
    return bucketing.weights_of(scenery.model(seed, branches=4, types="float64 and float32"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_has_what_is_easily_forgotten(seed):
    model = scenery.model(seed)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    buffers = dict(model.named_buffers())
    assert len(names) == len(list(model.parameters())) + 1, "a tied weight"
    assert any(not parameter.requires_grad for parameter in model.parameters())
    assert set(buffers) - set(model.state_dict()) == {"scale.mask"}
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float64, torch.int64, torch.bool}
    assert int(buffers["scale.counter"].max()) > 2**53, "a float64 cannot hold it"


def test_models_differ_in_size_structure_mode_and_hooks():
    models = [scenery.model(seed) for seed in SEEDS]
    assert len({tuple(parameter.shape for parameter in model.parameters()) for model in models}) > 10
    assert len({tuple(module.training for module in model.modules()) for model in models}) > 10
    assert {len(model.stem._forward_pre_hooks) for model in models} == {0, 1}


def test_a_model_is_the_same_wherever_it_is_made_and_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    one, other, third = scenery.model(5), scenery.model(5), scenery.model(5, numbers=6)
    assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert not torch.equal(one.stem.weight, third.stem.weight) and one.stem.weight.shape == third.stem.weight.shape


def test_a_twin_has_the_same_gradients_and_nobodys_hooks():
    model = scenery.model(1)
    model.stem.weight.register_hook(lambda gradient: gradient * 2)
    twin = scenery.twin(model)
    for one in (model, twin):
        scenery.loss(one, 3).backward()
    assert torch.equal(model.stem.weight.grad, twin.stem.weight.grad * 2)
    assert torch.equal(model.head.bias.grad, twin.head.bias.grad)


def test_momentum_is_that_of_torch():
    models = scenery.model(2), scenery.model(2)
    ours = scenery.Momentum(list(models[0].parameters()), 0.1, 0.9, 0.01)
    theirs = torch.optim.SGD(models[1].parameters(), 0.1, 0.9, weight_decay=0.01)
    for step in range(3):
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            model.zero_grad()
            scenery.loss(model, step).backward()
            optimizer.step()
    assert all(
        torch.allclose(a, b, rtol=1e-13) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )


# ---------------------------------------------------------------------- buckets
@pytest.mark.parametrize("cap", [1, 40, 200, 500, 1500, 10**6])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_the_buckets_are_those_of_torch(seed, cap):
    model = scenery.model(seed, branches=4, types="float64 and float32")
    parameters = [parameter for parameter in reversed(list(model.parameters())) if parameter.requires_grad]
    # (With indices, torch keeps the given order, as it does when it rebuilds its buckets.)
    indices, _ = dist._compute_bucket_assignment_by_size(parameters, [cap], [], list(range(len(parameters))))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    torchs = [[names[id(parameters[index])] for index in bucket] for bucket in indices]
    ours = [[weight.name for weight in bucket] for bucket in bucket_plans.buckets_of(bucketing.weights_of(model), cap)]
    assert sorted(ours) == sorted(torchs)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_caps_of_a_check_show_every_mistake_with_buckets(seed):
    shown = set()
    for case in bucketing.draw(random.Random(f"{bucketing.CONTRACT.name} {seed}")):
        for number, cap in enumerate(case["caps"]):
            weights = _weights(case["seed"] + number)
            right = bucket_plans.launches(bucket_plans.buckets_of(weights, cap))
            shown |= {
                mistake
                for mistake, how in bucket_plans.MISTAKES.items()
                if bucket_plans.launches(bucket_plans.buckets_of(weights, cap, **how)) != right
            }
    assert shown == set(bucket_plans.MISTAKES)


def test_a_bucket_waits_for_those_before_it():
    weights = _weights(0)[:4]
    buckets, names = [[one] for one in weights], [one.name for one in weights]
    assert bucket_plans.due(buckets, names) == [1, 2, 3, 4]
    assert bucket_plans.due(buckets, [names[2], names[0], names[3], names[1]]) == [2, 4, 4, 4]


def _order(seed: int, backwards: bool) -> list[str]:
    model, order = scenery.model(seed, branches=4, types="float64 and float32"), []
    model.order = model.order[:: -1 if backwards else 1]
    for name, parameter in scenery.trainable(model):
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    scenery.loss(model, 0).backward()
    return order


@pytest.mark.parametrize("seed", SEEDS)
def test_in_every_check_some_ranks_fill_their_buckets_in_another_order(seed):
    found = []
    for case in bucketing.draw(random.Random(f"{bucketing.CONTRACT.name} {seed}")):
        if case["order"] == "the same":
            continue
        for number, cap in enumerate(case["caps"]):
            buckets = bucket_plans.buckets_of(_weights(case["seed"] + number), cap)
            orders = [_order(case["seed"] + number, backwards) for backwards in (False, True)]
            assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]
            filled = [
                sorted(range(len(buckets)), key=lambda n, o=order: max(o.index(w.name) for w in buckets[n]))
                for order in orders
            ]
            found.append(filled[0] != filled[1] and filled[1] != sorted(filled[1]))
    assert any(found)


def test_the_example_in_the_lab_follows_the_rule():
    sizes = {"a": 40, "b": 200, "c": 60, "d": 16, "e": 40}
    weights = [Weight(name, size, "float64" if name == "d" else "float32") for name, size in sizes.items()]
    buckets = bucket_plans.buckets_of(weights, 100)
    assert [[weight.name for weight in bucket] for bucket in buckets] == [["e", "c"], ["d"], ["b"], ["a"]]
    assert bucket_plans.due(buckets, list("ecbda")) == [2, 4, 4, 5]


# ---------------------------------------------------------------------- unused parameters
def test_nobody_waits_for_what_gets_no_gradient():
    weights = _weights(0)[:4]
    buckets, names = [[one] for one in weights], [one.name for one in weights]
    assert bucket_plans.due(buckets, names[2:]) == [0, 0, 1, 2]
    assert bucket_plans.due(buckets, [names[3], names[0]]) == [2, 2, 2, 2]


def test_a_tangled_loss_is_the_same_and_too_deep_and_wide_for_a_careless_walk():
    model = scenery.model(3)
    loss = scenery.loss(model, 1)
    tangled = scenery.tangled(loss)
    assert torch.equal(loss, tangled)
    node, deep = tangled.grad_fn, 0
    while "Clone" in node.name():
        node, deep = node.next_functions[0][0], deep + 1
    assert deep > sys.getrecursionlimit()
    halves = [before for before, _ in node.next_functions]
    assert len(halves) == 2 and len({before.next_functions[0][0] for before in halves}) == 1, "two ways to one node"


def _ready(case: dict, step: int, rank: int) -> list[str]:
    """The gradients of a rank in a step, as they get ready."""
    model, order = bucketing.model_of(case, finding_unused.MODELS[step]), []
    model.order = case["used"][step][rank]
    for name, parameter in scenery.trainable(model):
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    scenery.loss(model, 0).backward()
    return order


@pytest.mark.parametrize("seed", SEEDS)
def test_in_every_check_buckets_are_ready_before_backward_and_in_it_and_at_its_end(seed):
    moments = []
    for case in finding_unused.draw(random.Random(f"{finding_unused.CONTRACT.name} {seed}")):
        for step, number in enumerate(finding_unused.MODELS):
            weights = {one.name: one for one in bucketing.weights_of(bucketing.model_of(case, number))}
            trained = sorted(name for name, one in weights.items() if one.trainable)
            assert sorted(name for names in case["plans"][number] for name in names) == trained
            for rank in range(case["ranks"]):
                ready = _ready(case, step, rank)
                buckets = [[weights[name] for name in names] for names in case["plans"][number]]
                moments += [(one, len(ready), len(trained)) for one in bucket_plans.due(buckets, ready)]
    assert any(due == 0 for due, *_ in moments)
    assert any(0 < due < last < all_of_them for due, last, all_of_them in moments)
    assert any(due == last for due, last, _ in moments)


# ---------------------------------------------------------------------- moments, and the text
def _found(*calls, ready=4):
    names = ("phase", "ready", "asynchronous", "waited")
    return {"calls": [dict(zip(names, call, strict=True)) for call in calls], "ready": list(range(ready))}


WAITED = ["finish()", 4]


@pytest.mark.parametrize(
    ("calls", "due", "said"),
    [
        ([("finish()", 4, True, WAITED)] * 2, 1, "this is a blocking DDP"),
        ([("finish()", 4, True, WAITED)] * 2, 4, ""),  # nothing could have gone earlier
        ([("backward", 1, False, ["backward", 1])], 1, "without async_op=True"),
        ([("backward", 1, True, ["backward", 3])], 1, "a wait while backward is still running"),
        ([("backward", 1, True, ["backward", 4])], 1, ""),  # at the end of backward
        ([("backward", 4, True, WAITED)] * 2, 1, "launched when the last gradient is ready"),
        ([("backward", 1, True, WAITED), ("backward", 4, True, WAITED)], 1, ""),
    ],
)
def test_overlap_is_judged_by_the_order_of_events(calls, due, said):
    broken = list(overlapping.judge_overlap(_found(*calls), due, 0, 0))
    assert [said in one.sentence for one in broken] == ([True] if said else [])


def test_the_lab_says_what_has_to_stay():
    text = " ".join("\n".join(cell.source for cell in nbformat.read(SOLUTION, as_version=4).cells).split())
    for promise in ("numbers, mode, `requires_grad`, ties, hooks, attributes of the model", "2 to 5 ranks",
                    "A gradient that is all zeros is used all the same", "An exception comes out",
                    "whose output the loss does not need, is unused", "more than 2⁶⁰ ways",
                    "in the first hook"):  # fmt: skip
        assert promise in text
