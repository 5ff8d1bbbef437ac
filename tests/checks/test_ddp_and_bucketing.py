"""Under the checks: the wire that delivers late, buckets as torch makes them, models on which mistakes show."""

from __future__ import annotations

import json
import sys

import cloudpickle
import labs_support as support
import nbformat
import pytest
import torch
import torch.distributed as dist

from utils.checks import Wrong, ddp_and_bucketing, run
from utils.checks.answers import Answer
from utils.checks.ddp_and_bucketing import bucket_plans, judges, probes, small_models
from utils.checks.ddp_and_bucketing.loop import Training
from utils.checks.ddp_and_bucketing.wire import Wire
from utils.checks.framework import exercises_in
from utils.course import outline

SOLUTION = outline.notebook("ddp_and_bucketing", "solutions")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest
EXERCISES = {exercise.name: exercise for exercise in exercises_in(ddp_and_bucketing)}


# ---------------------------------------------------------------------- the wire
def _late():
    """What a tensor holds before and after its wait, and what is noted."""
    wire, rank, seen = Wire("…"), dist.get_rank(), []
    with wire.listening():
        first, second, third = (torch.full((2,), float(rank + 1 + 10 * number)) for number in range(3))
        wire.phase = "backward"
        works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
        dist.group.WORLD.allreduce([third])  # never waited for
        wire.ready += ["a", "b"]
        seen.append(first.tolist())
        works[1].wait()
        seen += [first.tolist(), second.tolist()]
        first += 1
        works[0].wait()
        works[0].wait()  # the second wait changes nothing
        dist.broadcast(second, 1)
        seen += [first.tolist(), third.tolist()]
        facts = wire.end_of_step()
        empty = wire.end_of_step()
    return seen, facts, empty


def test_the_wire_delivers_when_somebody_waits_and_not_before():
    for rank, (seen, facts, empty) in enumerate(run(_late, ranks=2)):
        own = rank + 1.0
        assert seen == [[own] * 2, [own] * 2, [23.0] * 2, [3.0] * 2, [own + 20] * 2]
        calls = facts["calls"]
        assert [call["name"] for call in calls] == ["all_reduce"] * 3 + ["broadcast"]
        assert [call["changed"] for call in calls] == [True, False, False, False]
        assert [call["ready"] for call in calls] == [0, 0, 0, 2]
        assert [call["waited"] for call in calls] == [("backward", 2), ("backward", 2), None, ("backward", 2)]
        assert [call["asynchronous"] for call in calls][:2] == [True, True] and not calls[3]["asynchronous"]
        assert [call["bytes"] for call in calls] == [8] * 4 and calls[3]["detail"] == "1"
        assert facts["strangers"] == [] and facts["ready"] == ["a", "b"]
        assert empty == {"calls": [], "strangers": [], "ready": []}


@probes.together
def _disagree(how):
    wire, rank = Wire("Agree"), dist.get_rank()
    with wire.listening():
        dist.all_reduce(torch.ones(3))
        if how == "bytes":
            dist.all_reduce(torch.ones(3 + rank % 2))
        elif how == "types":
            dist.all_reduce(torch.ones(2, dtype=torch.int64 if rank else torch.float64))
        elif how == "operations":
            dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
        elif how == "sources":
            dist.broadcast(torch.ones(2), rank)
        elif how == "number" and rank == 1:
            dist.all_reduce(torch.ones(2), async_op=True)
        wire.end_of_step()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            "bytes",
            "an all_reduce of 12 bytes (float32) on ranks 0, 2, and an all_reduce of 16 bytes (float32) on rank 1",
        ),
        ("types", "an all_reduce of 16 bytes (float64) on rank 0, and an all_reduce of 16 bytes (int64) on ranks 1, 2"),
        ("operations", "an all_reduce of 8 bytes (float32) on rank 0, and an all_reduce (MAX) of 8 bytes (float32) on"),
        ("sources", "a broadcast from rank 1 of 8 bytes (float32) on rank 1"),
        ("number", "nothing more: its step is over on ranks 0, 2, and an all_reduce of 8 bytes (float32) on rank 1"),
    ],
)
def test_ranks_that_disagree_all_hear_of_it_and_nobody_hangs(how, sentence):
    results = run(_disagree, how, ranks=3, timeout=30)
    assert results == results[:1] * 3
    words, details = (results[0]["wrong"][part] for part in ("sentence", "details"))
    assert (
        words.startswith("the ranks do not call the same collectives. Number 2 of this step is") and sentence in words
    )
    assert details.startswith("rank 0: an all_reduce of 12 bytes")


def _refused(how):
    wire = Wire("…")
    with wire.listening():
        if how == "polling":
            dist.all_reduce(torch.ones(2), async_op=True).is_completed()
        elif how == "future":
            dist.all_reduce(torch.ones(2), async_op=True).get_future()
        elif how == "some":
            dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))
        elif how == "library":
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        elif how == "course":
            sys.modules["utils.algorithms.ddp"] = sys
            wire.end_of_step()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("polling", "nothing is completed before somebody waits"),
        ("future", "does not look into futures"),
        ("some", "all ranks have to take part"),
        ("library", "write it yourself"),
        ("course", "the answer uses utils.algorithms.ddp"),
    ],
)
def test_what_the_wire_cannot_judge_is_refused(how, sentence):
    with pytest.raises(Wrong, match=sentence):
        run(_refused, how, ranks=3, timeout=30)


def _others():
    wire, mean, largest = Wire("…"), torch.full((2,), 4.0 * dist.get_rank()), torch.tensor([dist.get_rank()])
    with wire.listening():
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return mean.tolist(), largest.tolist(), [call["detail"] for call in wire.end_of_step()["calls"]]


def test_other_operations_than_the_sum_arrive_too():
    assert run(_others, ranks=3) == [([4.0, 4.0], [2], ["AVG", "MAX"])] * 3


def _strange():
    wire = Wire("…")
    with wire.listening():
        dist.barrier()
        dist.all_gather([torch.ones(1) for _ in range(2)], torch.ones(1))
        return wire.end_of_step()["strangers"]


def test_other_collectives_are_heard():
    assert run(_strange, ranks=2) == [["barrier", "all_gather"]] * 2


def test_after_listening_everything_is_as_before():
    def look():
        group = dist.ProcessGroup
        before = group.allreduce, group.broadcast, torch.nn.parallel.DistributedDataParallel.__init__
        with Wire("…").listening():
            pass
        return before == (group.allreduce, group.broadcast, torch.nn.parallel.DistributedDataParallel.__init__)

    assert run(look, ranks=1) == [True]


def _optimizer():
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])


def test_ranks_that_really_hang_end_with_the_table(tmp_path, monkeypatch):
    run(_optimizer, ranks=1, timeout=60)  # imports half of torch, and from now on ranks begin with that
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    answer = tmp_path / "hangs.py"
    answer.write_text(
        "def average_used(model):\n    if rank != 1:\n        dist.barrier()\n    dist.all_reduce(model.never.bias)"
    )
    verdict, _ = support.judge_file(answer, EXERCISES["unused"])
    assert verdict.state == "wrong"
    assert "rank 1 waits in all_reduce for ranks 0, 2: ranks 0, 2 are in barrier" in verdict.details


# ---------------------------------------------------------------------- buckets
def _weights(name):
    return small_models.weights_of(small_models.MODELS[name]())


@pytest.mark.parametrize("cap", [1, 40, 200, 500, 504, 505, 1500, 10**6])
@pytest.mark.parametrize("name", small_models.MODELS)
def test_the_buckets_are_those_of_torch(name, cap):
    model = small_models.MODELS[name]()
    parameters = [parameter for parameter in reversed(list(model.parameters())) if parameter.requires_grad]
    # (With indices, torch keeps the given order, as it does when it rebuilds its buckets.)
    indices, _ = dist._compute_bucket_assignment_by_size(parameters, [cap], [], list(range(len(parameters))))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    torchs = [[names[id(parameters[index])] for index in bucket] for bucket in indices]
    ours = [
        [weight.name for weight in bucket] for bucket in bucket_plans.buckets_of(small_models.weights_of(model), cap)
    ]
    assert sorted(ours) == sorted(torchs)


def test_every_mistake_gives_other_buckets_than_the_rule_and_than_the_others():
    weights = _weights("Branches")
    made = {
        sentence: [
            bucket_plans.launches(bucket_plans.buckets_of(weights, cap, **how)) for cap in ddp_and_bucketing.CAPS
        ]
        for sentence, how in {"right": {}, **bucket_plans.MISTAKES}.items()
    }
    for sentence, launches in made.items():
        assert [other for other, others in made.items() if others == launches] == [sentence]
        assert sentence == "right" or launches[0] != made["right"][0], "the first training shows it"


def test_a_bucket_waits_for_those_before_it():
    weights = _weights("Branches")
    buckets = [[one] for one in weights[:4]]
    names = [one.name for one in weights[:4]]
    assert bucket_plans.due(buckets, names) == [1, 2, 3, 4]
    assert bucket_plans.due(buckets, [names[2], names[0], names[3], names[1]]) == [2, 4, 4, 4]


def _order(name, backwards):
    model, order = small_models.MODELS[name](), []
    model.backwards = backwards
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=parameter_name: order.append(name))
    small_models.loss_of(model, *small_models.data(0, 0)).backward()
    return order


def test_ranks_get_their_gradients_in_different_orders():
    one, other = _order("Branches", False), _order("Branches", True)
    assert sorted(one) == sorted(other) and one != other
    for cap in (1, 500):  # the trainings with another order
        buckets = bucket_plans.buckets_of(_weights("Branches"), cap)
        filled = [sorted(range(len(buckets)), key=lambda n, order=order: max(order.index(w.name) for w in buckets[n]))
                  for order in (one, other)]  # fmt: skip
        assert filled[0] != filled[1], "buckets are full in another order"
        assert filled[0] != sorted(filled[0]), "and not in the order of the buckets"


def test_a_bucket_that_does_not_wait_for_those_before_it_makes_ranks_disagree():
    path = support.ANSWERS / "ddp_and_bucketing" / "buckets" / "wrong_each_when_it_is_full.py"
    names: dict[str, object] = {"__name__": "answers"}
    exec(path.read_text(encoding="utf-8"), names)
    training = Training("Branches", "Adam", 500, other_order=True)
    answer = Answer.of(names["Bucketed"], "Bucketed")
    found = run(probes.overlapped, answer, (training,), ranks=2, timeout=60)[0]
    assert found["wrong"]["sentence"].startswith("the ranks do not call the same collectives")
    assert "launch bucket 0 first" in found["wrong"]["sentence"]


# ---------------------------------------------------------------------- models
@pytest.mark.parametrize("name", small_models.MODELS)
def test_bytes_and_type_tell_which_gradient_travels(name):
    sizes = [(weight.bytes, weight.dtype) for weight in _weights(name) if weight.trainable]
    assert len(set(sizes)) == len(sizes)


def test_the_model_has_what_is_easily_forgotten():
    weights, model = _weights("Everything"), small_models.Everything()
    assert [weight.names for weight in weights if len(weight.names) > 1] == [("square.weight", "again.weight")]
    assert any(not weight.trainable for weight in weights)
    assert {name for name, _ in model.named_buffers()} - set(model.state_dict()) == {"mask"}
    assert {training.optimizer for training in ddp_and_bucketing.EVERYTHING} == set(small_models.OPTIMIZERS)


def test_the_targets_in_the_lab_are_those_of_the_models():
    text = "\n".join(cell.source for cell in nbformat.read(SOLUTION, as_version=4).cells)
    weights, model = _weights("Everything"), small_models.Everything()
    everything = sum(weight.bytes for weight in weights) + sum(buffer.nbytes for buffer in model.buffers())
    trainable = [weight for weight in weights if weight.trainable]
    assert f"{everything:,} bytes in all" in text and f"move {sum(w.bytes for w in trainable):,} bytes" in text
    assert f"**1 of {len(trainable)}** gradients" in text
    branches = _weights("Branches")
    assert f"{sum(weight.trainable for weight in branches)} trainable parameters" in text
    for cap in ddp_and_bucketing.CAPS[:3]:
        assert f"cap {cap:,} it needs {len(bucket_plans.buckets_of(branches, cap))}" in " ".join(text.split()), cap


def test_the_example_in_the_lab_follows_the_rule():
    sizes = {
        "a": (40, "float32"),
        "b": (200, "float32"),
        "c": (60, "float32"),
        "d": (16, "float64"),
        "e": (40, "float32"),
    }
    weights = [small_models.Weight((name,), *size, trainable=True) for name, size in sizes.items()]
    buckets = bucket_plans.buckets_of(weights, 100)
    assert [[weight.name for weight in bucket] for bucket in buckets] == [["e", "c"], ["d"], ["b"], ["a"]]
    assert bucket_plans.due(buckets, list("ecbda")) == [2, 4, 4, 5]


# ---------------------------------------------------------------------- judges
def _facts(*calls, ready=4):
    return [{"calls": [dict(zip(("phase", "ready", "asynchronous", "waited"), call, strict=True), name="all_reduce",
                            changed=False) for call in calls], "ready": list(range(ready))}]  # fmt: skip


WAITED = ("finish()", 4)


@pytest.mark.parametrize(
    ("calls", "first_due", "sentence"),
    [
        ([("finish()", 4, True, WAITED)] * 2, 1, "this is a blocking DDP"),
        ([("finish()", 4, True, WAITED)] * 2, 4, ""),  # nothing could have gone earlier
        ([("backward", 1, False, ("backward", 1))], 1, "without async_op=True"),
        ([("backward", 1, True, ("backward", 3))], 1, "waits while backward is still running"),
        ([("backward", 1, True, ("backward", 4))], 1, ""),  # at the end of backward
        ([("backward", 4, True, WAITED)] * 2, 1, "launches all its all-reduces when the last gradient is ready"),
        ([("backward", 1, True, WAITED), ("backward", 4, True, WAITED)], 1, ""),
    ],
)
def test_overlap_is_judged_by_the_order_of_events(calls, first_due, sentence):
    if not sentence:
        return judges.judge_overlap(_facts(*calls), [first_due], "")
    with pytest.raises(Wrong, match=sentence):
        judges.judge_overlap(_facts(*calls), [first_due], "")


def test_answers_of_every_exercise_include_a_blocking_one_where_overlap_is_asked_for():
    folder = support.ANSWERS / "ddp_and_bucketing"
    for name in ("overlap", "buckets"):
        assert "blocking DDP" in (folder / name / "wrong_blocking.py").read_text(encoding="utf-8")
    counts = {name: len(list((folder / name).glob("wrong_*.py"))) for name in EXERCISES}
    assert min(counts.values()) >= 8, json.dumps(counts)
