"""Judging by contract: what is seen around a call, on the wire, in the numbers, and which sentence is said."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
import threading

import cloudpickle
import known_answers
import numpy
import pytest
import torch
import torch.distributed as dist
from ranks_support import eventually
from torch import nn

from checks import Wrong, printed, run
from checks.answers import Answer
from checks.contracts import Amount, Broken, Contract, Rules, compare, judge, surroundings, watch
from checks.contracts.contract import LONGEST, most_telling
from checks.contracts.memory import held, not_tensors
from checks.contracts.snapshot import Snapshot
from checks.contracts.wire import Stop, Wire
from checks.inside import OpenAnswer, Outcome
from utils.ranks import RanksInterrupted

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest


# ---------------------------------------------------------------------- snapshots
def _model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model[0].weight.grad = torch.ones(2, 2)
    return model


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda model: model[2].eval(), "model.2.training"),
        (lambda model: model[0].bias.requires_grad_(False), "model.0.bias.requires_grad"),
        (lambda model: setattr(model[1], "weight", nn.Parameter(model[1].weight.clone())), "model.1.weight.is"),
        (lambda model: setattr(model[0].bias, "data", model[0].bias.data.clone()), "model.0.bias.memory"),
        (lambda model: model[0].bias.data.add_(1e-7), "model.0.bias.value"),
        (lambda model: model[2].running_mean.add_(1), "model.2.running_mean.value"),
        (lambda model: model.zero_grad(), "model.0.weight.grad"),
        (lambda model: model[0].weight.grad.zero_(), "model.0.weight.grad.value"),
        (lambda model: model[0].weight.register_hook(print), "model.0.weight.hooks.added"),
        (lambda model: model.register_forward_hook(print), "model.hooks.added"),
        (lambda model: model[2].float().double(), "model.2.weight.dtype"),
        (lambda model: setattr(model, "kept", 1), "model.attributes"),
        (lambda model: model[2].register_buffer("more", torch.ones(1)), "model.2._buffers"),
        (lambda model: model.append(nn.Identity()), "model._modules"),
    ],
)
def test_a_snapshot_sees_every_kind_of_change(change, path):
    model = _model()
    before = Snapshot({"model": model})
    assert before.changes_to(Snapshot({"model": model})) == []
    change(model)
    assert path in [changed for changed, _, _ in before.changes_to(Snapshot({"model": model}))]


def test_hooks_of_others_that_are_removed_are_told_from_hooks_that_are_added():
    model = _model()
    handle = model[0].bias.register_hook(print)
    before = Snapshot({"model": model})
    handle.remove()
    model[0].bias.register_hook(repr)
    assert [path for path, _, _ in before.changes_to(Snapshot({"model": model}))] == ["model.0.bias.hooks.removed"]


def test_a_snapshot_looks_into_lists_and_dicts():
    things = {"batch": [torch.ones(2), {"label": torch.zeros(1)}]}
    before = Snapshot(things)
    things["batch"][1]["label"] += 1
    assert [path for path, _, _ in before.changes_to(Snapshot(things))] == ["batch[1][label].value"]


# ---------------------------------------------------------------------- the wire
def _late():
    wire, rank, seen = Wire(), dist.get_rank(), []
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
        found = wire.end_of_step()
    return seen, found, wire.hidden


def test_the_wire_delivers_when_somebody_waits_and_not_before():
    for rank, (seen, found, hidden) in enumerate(run(_late, ranks=2)):
        own, calls = rank + 1.0, found["calls"]
        assert seen == [[own] * 2, [own] * 2, [23.0] * 2, [3.0] * 2, [own + 20] * 2]
        assert [call["name"] for call in calls] == ["all_reduce"] * 3 + ["broadcast"]
        assert [call["changed"] for call in calls] == [True, False, False, False]
        assert [call["ready"] for call in calls] == [0, 0, 0, 2]
        assert [call["waited"] for call in calls] == [["backward", 2], ["backward", 2], None, ["backward", 2]]
        assert [call["asynchronous"] for call in calls][:2] == [True, True] and not calls[3]["asynchronous"]
        assert [call["bytes"] for call in calls] == [8] * 4 and calls[3]["peer"] == 1
        assert found["ready"] == ["a", "b"] and hidden == 0


def _in_place():
    """A rank's share of the tensor that goes in is where the sum of the shares comes out."""
    wire, rank = Wire(), dist.get_rank()
    tensor = torch.arange(4.0) + 10 * rank
    with wire.listening():
        dist.reduce_scatter_tensor(tensor[2 * rank : 2 * rank + 2], tensor)
        dist.all_gather_into_tensor(tensor, tensor[2 * rank : 2 * rank + 2])
        found = wire.end_of_step()
    return tensor.tolist(), [call["changed"] for call in found["calls"]]


def test_what_comes_out_of_a_collective_may_be_a_view_of_what_goes_in():
    assert run(_in_place, ranks=2) == [([10.0, 12.0, 14.0, 16.0], [False, False])] * 2


def _all_kinds():
    """Every kind of communication, with its right result although it goes over the wire."""
    wire, rank, size = Wire(), dist.get_rank(), dist.get_world_size()
    mine = torch.full((2,), float(rank))
    with wire.listening():
        gathered = [torch.empty(2) for _ in range(size)]
        dist.all_gather(gathered, mine)
        flat = torch.empty(2 * size)
        dist.all_gather_into_tensor(flat, mine)
        part = torch.empty(2)
        dist.scatter(part, [torch.full((2,), 5.0 + to) for to in range(size)] if rank == 0 else None, src=0)
        reduced = mine.clone()
        dist.reduce(reduced, dst=1, op=dist.ReduceOp.MAX)
        exchanged = torch.empty(size)
        dist.all_to_all_single(exchanged, torch.arange(float(size)) + 10 * rank)
        got = torch.empty(2)
        works = [dist.isend(mine, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
        before = got.tolist()
        works[1].wait()
        objects = [None] * size
        dist.all_gather_object(objects, f"rank {rank}")
        dist.barrier()
        found = wire.end_of_step()
    names = {call["name"]: call["waited"] for call in found["calls"]}
    return flat.tolist(), part.tolist(), reduced.tolist(), exchanged.tolist(), got.tolist(), before, objects, names


def test_every_kind_of_communication_works_over_the_wire():
    for rank, (flat, part, reduced, exchanged, got, before, objects, names) in enumerate(run(_all_kinds, ranks=2)):
        assert flat == [0, 0, 1, 1] and part == [5.0 + rank] * 2 and exchanged == [rank, 10.0 + rank]
        assert reduced == [1.0, 1.0] or rank == 0
        assert got == [1.0 - rank] * 2 and (before != got or rank == 1)
        assert objects == ["rank 0", "rank 1"]
        assert names["send"] is None and names["recv"] == ["", 0]
        assert set(names) == {"all_gather", "scatter", "reduce", "all_to_all", "send", "recv", "barrier"}


def _hidden():
    wire = Wire()
    with wire.listening():
        dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([torch.ones(3)]).wait()
        wire.end_of_step()
    return wire.hidden


def test_collectives_past_the_functions_of_torch_are_counted():
    assert run(_hidden, ranks=2) == [1, 1]


def _disagree(how):
    wire, rank = Wire(), dist.get_rank()
    try:
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
            elif how == "kinds":
                dist.barrier() if rank else dist.all_reduce(torch.ones(2))
            wire.end_of_step()
    except Stop:
        return wire.stopped


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
        ("kinds", "an all_reduce of 8 bytes (float32) on rank 0, and a barrier on ranks 1, 2"),
    ],
)
def test_ranks_that_disagree_all_hear_of_it_and_nobody_hangs(how, sentence):
    results = run(_disagree, how, ranks=3, timeout=30)
    assert [one["clause"] for one in results] == ["disagree"] * 3
    assert results[0]["sentence"].startswith("the ranks do not call the same collectives. Number 2 of this step is")
    assert sentence in results[0]["sentence"]
    assert results[0]["details"].startswith("rank 0: an all_reduce of 12 bytes")


# ---------------------------------------------------------------------- numbers
def _clauses(got, terms, factor=1.0, guesses=None):
    return [one.clause for one in compare("value", "it", got, terms, factor, guesses)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_any_order_of_a_sum_is_right_and_a_smaller_type_is_not(dtype, count):
    terms = list(torch.randn(count, 50, dtype=dtype, generator=torch.Generator().manual_seed(count)))
    forward, backward = sum(terms) / count, sum(one / count for one in reversed(terms))
    assert _clauses(forward, terms, 1 / count) == _clauses(backward, terms, 1 / count) == []
    smaller = {torch.float64: torch.float32, torch.float32: torch.bfloat16}[dtype]
    rounded = sum(one.to(smaller) for one in terms).to(dtype) / count
    assert _clauses(rounded, terms, 1 / count) == ["value:off"]


def test_where_an_infinity_or_nan_goes_in_one_has_to_come_out():
    terms = [torch.tensor([1.0, torch.nan, torch.inf, -torch.inf]), torch.ones(4)]
    right = sum(terms)
    assert _clauses(right.clone(), terms, 1.0) == []
    for got in (right.nan_to_num(), right.nan_to_num(posinf=-torch.inf), torch.tensor([3.0, *right[1:]])):
        assert _clauses(got, terms, 1.0) == ["value:off"]
    assert _clauses(right / 2, terms, 1.0, {"is the mean": right / 2}) == ["value:is the mean"]


def test_right_numbers_in_other_places_are_told_from_rounding():
    right = torch.arange(1000, 1100, dtype=torch.float32)
    for got, words in (
        (right.flip(0), "but in other places"),
        (right + 0.5, "rounding explains: is all of it computed"),
    ):
        (broken,) = compare("value", "it", got, [right])
        assert words in broken.sentence


class _Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 2

    @staticmethod
    def backward(ctx, upstream):
        return upstream * 2, None


@pytest.mark.parametrize(
    "kept",
    [numpy.ones(1000), b"x" * 8000, [[0.5 + n for n in range(400)]], 2**64000],
    ids=lambda one: type(one).__name__,
)
def test_what_an_answer_holds_is_found_though_it_is_no_tensor(kept):
    class Object:
        def __init__(self):
            self.inner = {"kept": [kept]}

        def step(self):
            return kept

    x = torch.ones(3, requires_grad=True)
    tensor = x.detach().clone()
    tensor.kept = kept
    for holder in (Object(), _Keeps.apply(x, kept).sum(), tensor, Object.step):
        assert not_tensors(holder) >= 8000
    assert not_tensors(_Keeps.apply(x, None).sum(), x, "text", 5, None, lambda: x) == 0


def test_a_tensor_in_the_given_ones_memory_is_nothing_held():
    given = torch.zeros(9000)
    with held(given) as found:
        views = [torch.from_numpy(view).add_(1) for view in numpy.split(given.numpy(), 3)]
    assert len(views) == 3 and found["tensors"] == 0
    with held(given[:3]) as found:
        given.clone()
    assert found["tensors"] == given.nbytes


def test_a_wrong_number_is_named_if_a_mistake_explains_it():
    terms = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])]
    guesses = {"is the sum": sum(terms).double()}
    assert _clauses(sum(terms), terms, 0.5, guesses) == ["value:is the sum"]
    assert _clauses(torch.tensor([1.0, float("nan")]), terms, 0.5, guesses) == ["value:off"]
    assert _clauses(None, terms) == ["value:none"]
    assert _clauses(sum(terms).double(), terms) == _clauses(torch.ones(3), terms) == ["value:type"]


# ---------------------------------------------------------------------- the sentence
CASE = {"ranks": 3, "type": "float64", "seed": 9, "drawn": 4, "caps": [1, 2]}


def test_a_known_mistake_is_said_before_what_comes_first():
    broken = [Broken("around:a", "the first", call=0), Broken("value:b", "the second", 2, 3, rank=1, call=1)]
    assert most_telling((), CASE, broken).sentence == "the first. The case: 3 ranks, type: float64, seed 4."
    wrong = most_telling([("value:*", "{}: mind the sum")], CASE, broken)
    assert (
        wrong.text
        == "on rank 1 the second: mind the sum. The case: 3 ranks, type: float64, seed 4. (measured: 2; expected: 3)"
    )


def test_of_one_call_the_cause_is_said():
    broken = [Broken("keeps:", "d"), Broken("value:x", "c"), Broken("state:x", "b"), Broken("ready:x", "a")]
    assert most_telling((), CASE, broken).sentence.startswith("a.")


def test_no_sentence_is_longer_than_it_may_be():
    wrong = most_telling((), CASE, [Broken("value:x", "long " * 10_000, "long " * 10_000, [1] * 10_000)])
    assert (
        len(wrong.text) <= LONGEST and "…. The case: 3 ranks, type: float64, seed 4. (measured: long long" in wrong.text
    )


# ---------------------------------------------------------------------- a whole check
def _draw(rng: random.Random):
    return [{"ranks": ranks, "seed": rng.getrandbits(8)} for ranks in (2, 3)]


def _scene(case, watch, facts):
    tensor = torch.full((3,), float(dist.get_rank() + case["seed"]))
    facts["before"] = tensor.clone()
    watch.call("mean", tensor=tensor)
    facts["after"] = tensor


def _judge(case, world):
    for rank, facts in enumerate(world):
        terms = [one["before"] for one in world]
        yield from compare("value:mean", "the mean", facts["after"], terms, 1 / len(world), rank=rank)


TOY = Contract(
    "toy.mean",
    {"mean": Rules(changes=("tensor.value",), wire=lambda case, rank, facts: {"all_reduce": Amount(1, 12)})},
    _draw,
    _scene,
    _judge,
    figures=lambda played: {"cases": len(played)},
)


def _say(text):
    names = known_answers.run(f"import torch\nimport torch.distributed as dist\n\n{text}", "toy")
    try:
        return str(judge(TOY, Answer.of(names["mean"], "mean")))
    except Wrong as wrong:
        return wrong.text


GOOD = "def mean(tensor):\n    dist.all_reduce(tensor)\n    tensor /= dist.get_world_size()\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD, "{'cases': 2}"),
        (GOOD + "    tensor.requires_grad_()\n", "`tensor` has another `requires_grad` than before"),
        (GOOD + "    import os\n    os.environ['LEFT'] = '1'\n", "leaves the environment variables other than before"),
        (GOOD + "    import os\n    os.chdir('/')\n", "leaves the working folder other than before"),
        (GOOD + "    torch.set_num_threads(2)\n", "leaves torch's defaults other than before"),
        (GOOD + "    torch.set_num_threads(2)\n", "(measured: 2; expected: 1)"),
        (GOOD + "    __import__('gc').disable()\n", "leaves Python's settings other than before"),
        (GOOD + "    __import__('os').system('true')\n", "starts a process, and needs none"),
        (GOOD + "    __import__('socket').socket().bind(('127.0.0.1', 0))\n", "starts a connection, and needs none"),
        (GOOD + "    torch.save(tensor, 'left.pt')\n", "the files in its folder"),
        (GOOD + "    open('left.txt', 'w').close()\n", "writes a file"),
        (GOOD + "    __import__('gc').get_objects()\n", "looks into the check with gc.get_objects"),
        (GOOD + "    __import__('inspect').currentframe()\n", "looks into the check with sys._getframe"),
        (GOOD + "    import lessons.algorithms.ddp\n", "uses lessons.algorithms"),
        ("import lessons.algorithms.ddp as theirs\n" + GOOD + "    theirs\n", "uses lessons.algorithms.ddp"),
        (GOOD + "    import threading\n    threading.Timer(9, print).start()\n", "leaves the number of threads other"),
        (GOOD + "    __builtins__['max'] = min\n", "replaces the builtin max"),
        (GOOD + "    dist.ProcessGroup.size = lambda self: 1\n", "leaves the functions of ProcessGroup other"),
        (GOOD + "    torch.Tensor.equal = lambda *_: True\n", "leaves the functions of Tensor other"),
        (GOOD.replace("    dist", "    raise KeyboardInterrupt\n    dist"), "raised KeyboardInterrupt"),
        (GOOD.replace("    dist", "    raise SystemExit\n    dist"), "calls sys.exit()"),
        (GOOD.replace("    dist", "    while True:\n        pass\n    dist"), "is there a loop without end"),
        (
            GOOD.replace("tensor)\n    t", "tensor, group=dist.new_subgroups(1)[0])\n    t"),
            "among some of the ranks only",
        ),
    ],
)
def test_what_a_contract_does_not_allow_is_refused_and_named(text, said):
    assert said in _say(text)


def test_of_what_an_answer_prints_that_of_the_case_is_shown_of_which_the_sentence_speaks():
    text = GOOD + "    print('of', dist.get_world_size())\n"
    with printed.collected() as first:
        assert _say(text) == "{'cases': 2}"
    with printed.collected() as last:
        assert "The case: 3 ranks" in _say(text + "    if dist.get_world_size() == 3:\n        tensor += 1\n")
    with printed.collected() as stuck:
        _say("def mean(tensor):\n    print('of', dist.get_rank())\n    dist.recv(tensor)\n")
    assert (first, last, stuck) == (["of 2"] * 2, ["of 3"] * 3, ["of 0", "of 1"])


def test_an_interrupt_names_the_line_in_which_an_answer_never_ends(tmp_path):
    there = f"    open('{tmp_path}/' + str(dist.get_rank()), 'w').close()\n"
    thread = threading.Thread(
        target=lambda: (
            eventually(lambda: len(list(tmp_path.iterdir())) == 2, 60) and os.kill(os.getpid(), signal.SIGINT)
        )
    )
    thread.start()
    with pytest.raises(RanksInterrupted) as stopped:
        _say(f"def mean(tensor):\n{there}    while True:\n        tensor += 1\n")
    thread.join()
    assert "finished" not in stopped.value.report
    assert re.search(r"line [67]|  [67]  ", stopped.value.report) and "tensor += 1" in stopped.value.report


def test_ranks_that_have_to_share_cores_need_not_compute_as_long_before_a_loop_is_said_to_be_without_end():
    def computing():
        with watch.not_for_ever():
            while True:
                pass

    def until(patience):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(watch, "PATIENCE", patience)
            with pytest.raises(Outcome, match="without end") as found:
                computing()
        return int(re.search(r"after (\d+) s of computing", str(found.value))[1])

    assert until(patience=0) == watch.AT_LEAST
    assert until(patience=1000) == watch.COMPUTING


def test_an_answer_that_is_not_started_is_not_wrong():
    from checks import NotStarted

    names = known_answers.run("def mean(tensor):\n    raise NotImplementedError('…')\n", "toy")
    with pytest.raises(NotStarted):
        judge(TOY, Answer.of(names["mean"], "mean"))


def test_another_seed_draws_other_cases_and_the_same_seed_the_same():
    assert _draw(random.Random("a 1")) == _draw(random.Random("a 1")) != _draw(random.Random("a 2"))


def test_classes_of_the_same_name_in_two_labs_are_told_apart():
    """Else who did both labs in one kernel was told that an answer had replaced functions of the second check."""
    from checks.checkpointing import trainings
    from checks.core import watching

    seen = surroundings.functions()
    for module, has_mark in ((trainings, False), (watching, True)):
        names = {name for name, _ in seen[f"the functions of {module.__name__}.Watched"]}
        assert ("mark" in names) == has_mark


def _changed(before):
    return [(name, now) for name, _, now in surroundings.changed(before, surroundings.settled(before))]


def test_a_thread_that_ends_during_a_call_is_no_change_and_hides_none(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone, stays = threading.Event(), threading.Event()
    ends, left = (threading.Thread(target=until.wait, daemon=True) for until in (gone, stays))
    ends.start()
    before = surroundings.surroundings()
    gone.set()
    ends.join()
    assert _changed(before) == []
    left.start()
    assert _changed(before) == [("the number of threads", "1 more")]
    stays.set()


def test_bytes_are_not_counted_while_somebody_looks_at_frames_which_hold_tensors():
    import simgpu
    from checks.contracts import gpus
    from utils.ranks.locate import looking

    simgpu.cluster(gpus_per_node=1)
    empty = gpus.held()
    counted, kept = [], [torch.ones(1000, device="simgpu")]
    with looking:
        other = threading.Thread(target=lambda: counted.append(gpus.held()))
        other.start()
        other.join(0.5)
        assert counted == []
        kept.clear()
    other.join()
    assert counted == [empty]


def test_what_the_check_itself_raises_in_an_answer_is_no_error_of_the_answer():
    """Else a call that was ended because it waits for ever counted as one that raises an error, which some have to."""

    def waits_for_ever():
        raise Outcome("wrong", "waits for ever")

    with pytest.raises(Outcome) as caught:
        OpenAnswer("waits_for_ever", waits_for_ever, [__file__])()
    assert caught.value.__cause__ is None
