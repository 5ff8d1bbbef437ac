"""The slow link and the profile of a step, on real ranks. Times are bounded from below only: true by construction."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import threading
import time
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from ddp_support import SMALL, Broken, gradients, inputs, on_ranks, same
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lessons.algorithms.ddp import BucketedDDP
from lessons.algorithms.overlap import SlowLink, SlowRanks, StepProfile, profile_step, slow_hook, total
from utils.hardware.links import Link, ring_all_reduce

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks

SLOW = Link("slow", alpha_s=0.01, bytes_per_s=1e6, year=0, source="a test")
QUICK = Link("quick", alpha_s=0.0, bytes_per_s=1e12, year=0, source="a test")


# ---------------------------------------------------------------------- the link
def messages() -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    before = set(threading.enumerate())
    link = SlowLink(SLOW)
    found["threads"] = [thread.name for thread in set(threading.enumerate()) - before]
    sent = [torch.full((size,), rank + 1.0) for size in (1, 5000, 300, 0)]
    took = []
    for tensor in sent:
        began = time.perf_counter()
        result = link.all_reduce(tensor).wait()
        took.append(time.perf_counter() - began)
        found.setdefault("same tensor", []).append(result is tensor or result.data_ptr() == tensor.data_ptr())
    found["took"], found["sums"] = took, [tensor.unique().tolist() for tensor in sent]
    # Three at once: in order, one after the other; one with nothing to do with the link gets in between
    done: list[int] = []
    began = time.perf_counter()
    futures = [link.all_reduce(torch.full((4,), float(i))) for i in range(3)]
    found["at once"] = time.perf_counter() - began
    for i, future in enumerate(futures):
        future.add_done_callback(lambda _, i=i: done.append(i))
    between = torch.ones(2)
    dist.all_reduce(between)
    found["values"] = [future.wait()[0].item() for future in futures]
    found["together"], found["between"] = time.perf_counter() - began, between.tolist()
    # Something gloo cannot add: the rank that waits hears of it, and the link goes on
    try:
        link.all_reduce(torch.ones(2, dtype=torch.int16)).wait()
    except RuntimeError as error:
        found["error"] = str(error)
    last = link.all_reduce(torch.ones(2))
    link.close()
    found["after close"] = last.done() and last.value().tolist() == [2.0, 2.0]
    found["done"] = done
    found["left"] = [thread.name for thread in set(threading.enumerate()) - before]
    link.close()  # once more does no harm
    try:
        link.all_reduce(torch.ones(2))
    except RuntimeError as error:
        found["closed"] = str(error)
    found["sent"] = link.sent
    return found


def test_the_slow_link_gives_the_sum_in_order_and_not_before_its_time() -> None:
    stated = [ring_all_reduce(4 * size, 2, SLOW) for size in (1, 5000, 300, 0)]
    assert stated[0] >= 0.02 and stated[1] >= 0.04
    for found in on_ranks(messages):
        assert found["threads"] == ["slow link"] and found["left"] == []
        assert found["sums"] == [[3.0], [3.0], [3.0], []] and all(found["same tensor"])
        assert all(took >= at_least for took, at_least in zip(found["took"], stated, strict=True))
        assert (
            found["at once"] < found["together"] and found["values"] == [0.0, 2.0, 4.0] and found["done"] == [0, 1, 2]
        )
        assert found["together"] >= 3 * ring_all_reduce(16, 2, SLOW)
        assert found["between"] == [2.0, 2.0]
        assert found["error"] and found["after close"]
        assert found["closed"].startswith("this slow link is closed")
        assert found["sent"][:4] == [4, 20000, 1200, 0] and len(found["sent"]) == 9


def late_rank() -> tuple[float, float]:
    """Rank 1 sends later than rank 0: when each began and was done, on a clock that both share."""
    link = SlowLink(SLOW)
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(0.1)
    began = time.monotonic()
    link.all_reduce(torch.ones(1)).wait()
    done = time.monotonic()
    link.close()
    return began, done


def test_a_message_begins_when_its_last_rank_is_there() -> None:
    (_, done), (began, also_done) = on_ranks(late_rank)
    assert min(done, also_done) >= began + ring_all_reduce(4, 2, SLOW) - 0.001  # (the thread takes it up after `began`)


def crossed() -> tuple[float, float]:
    """Rank 0 gives the link a message, and then all-reduces something else; rank 1 the other way round."""
    rank, between = dist.get_rank(), torch.full((1,), 10.0)
    link = SlowLink(QUICK)
    if rank == 0:
        message = link.all_reduce(torch.ones(1))
        time.sleep(0.2)
    dist.all_reduce(between)
    if rank == 1:
        message = link.all_reduce(torch.ones(1))
    value = message.wait().item()
    link.close()
    return value, between.item()


def test_what_ranks_say_beside_the_link_does_not_get_in_between() -> None:
    assert on_ranks(crossed) == [(2.0, 20.0)] * 2


def one_rank() -> list[float]:
    link = SlowLink(SLOW)
    value = link.all_reduce(torch.full((3,), 2.0)).wait()
    link.close()
    return value.tolist()


def test_one_rank_has_nobody_to_wait_for() -> None:
    assert on_ranks(one_rank, ranks=1) == [[2.0, 2.0, 2.0]]


# ---------------------------------------------------------------------- DDPs over the link
class Chain(nn.Module):
    """Three layers; the first can be skipped, or be followed by something whose backward pass fails."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
        self.trouble = ""

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.layers
        x = x if self.trouble == "skip" else first(x)
        x = Broken.apply(x) if self.trouble == "fail" else x
        x = third(second(x))
        return x * 100 if self.trouble else x


def ddps_over_the_link() -> dict[str, Any]:
    rank, found = dist.get_rank(), {}
    link = SlowLink(Link("slow", alpha_s=0.01, bytes_per_s=1e9, year=0, source="a test"))
    torch.manual_seed(rank)
    models = [Chain()]
    models += [copy.deepcopy(models[0]) for _ in range(3)]
    ddps: list[nn.Module] = [
        BucketedDDP(models[0], bucket_cap_mb=SMALL),
        BucketedDDP(models[1], bucket_cap_mb=SMALL, communicator=SlowRanks(link)),
        DistributedDataParallel(models[2], bucket_cap_mb=SMALL),
        DistributedDataParallel(models[3], bucket_cap_mb=SMALL),
    ]
    ddps[3].register_comm_hook(link, slow_hook)
    for step in range(3):
        results = []
        for model, ddp in zip(models, ddps, strict=True):
            ddp.zero_grad()
            ddp(inputs(rank, step, 2, 4)).square().sum().backward()
            results.append(gradients(model))
        found[f"step {step}"] = all(same(result, results[0]) for result in results[1:])
    found["sent"] = [nbytes for nbytes in link.sent if nbytes != 64]
    # A bucket of a backward pass that failed is still under way when the next step begins
    for trouble in ("fail", "skip"):
        model, ddp = models[1], ddps[1]
        ddp.zero_grad()
        before = len(link.sent)
        model.trouble = trouble
        try:
            ddp(inputs(rank, 0, 2, 4)).square().sum().backward()
        except (ArithmeticError, RuntimeError) as error:
            found[f"{trouble}: raised"] = str(error).startswith(("on purpose", "1 of 3 parameters got no gradient"))
        found[f"{trouble}: launched"] = len(link.sent) - before == 2
        model.trouble = ""
        ddp.zero_grad()
        ddp(inputs(rank, 2, 2, 4)).square().sum().backward()
        found[f"{trouble}: next step"] = same(gradients(model), results[0])
    link.close()
    return found


def test_both_ddps_give_the_same_gradients_over_the_link_also_after_a_failed_pass() -> None:
    for found in on_ranks(ddps_over_the_link):
        assert found.pop("sent") == [3 * 64]  # torch's first step has one bucket
        assert all(found.values()), [name for name, right in found.items() if not right]


def broken_link() -> str:
    link = SlowLink(QUICK)
    model = nn.Linear(2, 2, dtype=torch.float64)
    ddp = BucketedDDP(model, communicator=SlowRanks(link))
    ddp.buckets[0].flat = ddp.buckets[0].flat.to(torch.int16)  # what gloo cannot add
    for slot in ddp.buckets[0].slots:
        slot.view = slot.view.clone()
    try:
        ddp(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    except RuntimeError as error:
        return str(error)
    finally:
        link.close()
    return "nothing"


def test_an_error_on_the_link_reaches_the_backward_pass_that_waits() -> None:
    assert all("nvalid scalar type" in sentence for sentence in on_ranks(broken_link))


# ---------------------------------------------------------------------- the profile of a step
SLOW_BACKWARD = 0.1  # seconds: time enough for the thread of the link to take up a message, on a busy machine too


class Sleeps(torch.autograd.Function):
    """An identity whose backward pass takes its time, but for the steps before the one that is profiled."""

    seconds = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(Sleeps.seconds)
        return gradient


class Stack(nn.Module):
    """Three layers, each with a slow backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(Sleeps.apply(x))
        return x


def profiled() -> dict[str, Any]:
    """Profiles of a step, for several ways to average; and what the profiler wrote to stderr and stdout."""
    rank, found = dist.get_rank(), {}
    link = SlowLink(Link("slow", alpha_s=0.005, bytes_per_s=1e9, year=0, source="a test"))
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            for kind in (
                "blocking",
                "blocking over the link",
                "ours",
                "ours over the link",
                "torch over the link",
                "local",
            ):
                model = Stack()
                ddp: nn.Module = model
                if kind.startswith("ours"):
                    ranks = SlowRanks(link) if "link" in kind else None
                    ddp = BucketedDDP(model, bucket_cap_mb=SMALL, communicator=ranks)
                elif kind.startswith("torch"):
                    ddp = DistributedDataParallel(model, bucket_cap_mb=SMALL)
                    ddp.register_comm_hook(link, slow_hook)

                def step(kind: str = kind, ddp: nn.Module = ddp, model: nn.Module = model) -> None:
                    ddp(inputs(rank, 0, 2, 8).requires_grad_()).sum().backward()
                    if kind.startswith("blocking"):
                        for one in model.parameters():
                            link.all_reduce(one.grad).wait() if "link" in kind else dist.all_reduce(one.grad)

                Sleeps.seconds = 0.0
                step(), step()
                Sleeps.seconds = SLOW_BACKWARD
                dist.barrier()
                began = time.perf_counter()
                profile = profile_step(step, rank)
                found[kind] = profile, time.perf_counter() - began
            try:
                profile_step(lambda: ddp(inputs(rank, 0, 2, 8)))
            except ValueError as error:
                found["no backward"] = str(error)
        finally:
            for number, copied in zip((1, 2), kept, strict=True):
                os.dup2(copied, number)
        file.seek(0)
        found["noise"] = file.read().decode()
    link.close()
    return found


@pytest.fixture(scope="module")
def profiles() -> list[dict[str, Any]]:
    return on_ranks(profiled)


def test_a_profile_says_what_a_step_did(profiles: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(profiles):
        assert found.pop("no backward").startswith("there was no backward pass in this step")
        assert found.pop("noise") == ""
        for kind, (profile, took) in found.items():
            assert profile.rank == rank
            begin, ends = profile.forward[0], profile.backward_ends
            assert begin <= profile.forward[1] == profile.backward[0][0] < ends <= profile.end
            assert ends - profile.backward[0][0] >= 3 * SLOW_BACKWARD - 0.001
            assert 3 * SLOW_BACKWARD - 0.001 <= profile.elapsed <= took
            assert all(begin <= a < b <= profile.end + 0.001 for a, b in profile.communication)
            assert profile.communication == sorted(profile.communication)
            assert len(profile.communication) == (0 if kind == "local" else 3)
            assert 0.0 <= profile.hidden <= 1.0
            if "link" in kind:
                assert all(b - a >= 0.009 for a, b in profile.communication)
                assert profile.communicating >= 3 * 0.009


def early(profile: StepProfile) -> float:
    """Seconds from the launch of the first message to the end of the backward pass. Negative: it came later."""
    return profile.backward_ends - profile.communication[0][0]


def test_what_is_sent_after_the_backward_pass_is_not_hidden(profiles: list[dict[str, Any]]) -> None:
    for found in profiles:
        for kind in ("blocking", "blocking over the link"):
            profile, _ = found[kind]
            assert profile.hidden == 0.0 and early(profile) < 0.0


def test_what_is_sent_during_the_backward_pass_is_early_and_hidden(profiles: list[dict[str, Any]]) -> None:
    for kind in ("ours", "ours over the link", "torch over the link"):
        # A message begins when the last rank is there. For that rank two slow layers come after the first message.
        assert max(early(found[kind][0]) for found in profiles) > SLOW_BACKWARD
        assert max(found[kind][0].hidden for found in profiles) > 0.0


def test_the_ranks_of_a_machine_share_the_profiles_clock(profiles: list[dict[str, Any]]) -> None:
    for kind in ("blocking", "ours", "ours over the link"):  # a message ends nowhere before it has begun everywhere
        starts, ends = ([one[kind][0].communication[0][i] for one in profiles] for i in (0, 1))
        assert min(ends) >= max(starts) - 0.001


def test_a_step_that_sends_by_nccl_is_refused() -> None:
    """What the CPU does for NCCL ends long before the message does."""

    def step() -> None:
        with torch.profiler.record_function("nccl:all_reduce"):
            torch.ones(1, requires_grad=True).sum().backward()

    with pytest.raises(ValueError, match="NCCL sends on the GPU"):
        profile_step(step, 0)


def test_a_profile_counted_by_hand() -> None:
    profile = StepProfile(
        3, (10.0, 11.0), [(11.0, 14.0), (12.0, 12.5), (15.0, 16.0)], [(13.0, 15.0), (15.5, 18.0)], 19.0
    )
    assert (profile.elapsed, profile.communicating, profile.backward_ends) == (9.0, 4.5, 16.0)
    assert (profile.hidden, early(profile)) == (2.5 / 4.5, 3.0)
    spans = profile.spans()
    assert [(span.lane, span.start, span.end) for span in spans] == [
        ("rank 3", 0.0, 1.0),
        ("rank 3", 1.0, 4.0),
        ("rank 3", 5.0, 6.0),
        ("rank 3 ↔", 3.0, 5.0),
        ("rank 3 ↔", 5.5, 8.0),
    ]
    assert profile.spans(zero=9.0)[0].start == 1.0
    late = StepProfile(0, (0.0, 1.0), [(1.0, 5.0), (2.0, 3.0)], [(5.0, 6.0), (5.5, 7.0)], 8.0)
    assert (late.hidden, early(late), late.communicating) == (0.0, 0.0, 2.0)  # the first to begin was the last to end
    silent = StepProfile(0, (0.0, 1.0), [(1.0, 5.0)], [], 8.0)
    assert (silent.hidden, silent.communicating) == (0.0, 0.0)
    assert total([(3.0, 4.0), (0.0, 2.0), (1.0, 2.5)]) == 3.5
