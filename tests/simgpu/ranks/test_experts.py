"""Mixtures of experts with shapes only: how many tokens go to which expert, as far as the host knows it."""

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import join
from torch.distributed._functional_collectives import all_to_all_single_autograd

import simgpu
from utils.ranks import World

RANKS = 8

TOKENS, WIDTH, HIDDEN = 8192, 4096, 14336


def layer(device, chosen):
    """One expert on each rank: tokens go there and come back. ``chosen``: each token's expert, known to the host."""
    ranks = dist.get_world_size()
    with device:
        x = torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16).requires_grad_()
        up = torch.zeros(HIDDEN, WIDTH, dtype=torch.bfloat16).requires_grad_()
        down = torch.zeros(WIDTH, HIDDEN, dtype=torch.bfloat16).requires_grad_()
    chosen = chosen.to(device)
    counts = torch.bincount(chosen, minlength=ranks)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    to, back = counts.tolist(), theirs.tolist()
    came = all_to_all_single_autograd(x[chosen.argsort()], back, to, dist.group.WORLD)
    assert came.shape[0] == sum(back)
    out = all_to_all_single_autograd(torch.relu(came @ up.t()) @ down.t(), to, back, dist.group.WORLD)
    out.sum().backward()
    assert out.shape == x.shape and x.grad.shape == x.shape
    return back


def choices(share):
    """Expert 0 gets this share of all tokens, the others equally many of the rest."""
    first = int(TOKENS * share)
    return torch.cat([torch.zeros(first, dtype=torch.long), 1 + torch.arange(TOKENS - first) % (RANKS - 1)])


def skewed(share):
    device = join(numbers=False)
    for _ in range(2):
        with simgpu.profile() as prof:
            back = layer(device, choices(share))
    return prof.elapsed, prof.busy(device.index), prof.peak_memory(device.index), back


def test_a_favourite_expert_makes_all_ranks_wait_and_fills_its_own():
    with World(RANKS, backend="gloo", timeout=300) as world:
        found = {share: world.run(skewed, share) for share in (1 / 8, 1 / 4, 1 / 2)}
        with pytest.raises(Exception, match=r"bincount needs the numbers in a tensor.*leave it out"):
            world.run(of_unknown_choices)
    seconds = {share: max(elapsed for elapsed, *_ in ranks) for share, ranks in found.items()}
    assert seconds[1 / 4] == pytest.approx(2 * seconds[1 / 8], rel=0.1)
    assert seconds[1 / 2] == pytest.approx(4 * seconds[1 / 8], rel=0.1)
    first, *others = found[1 / 2]
    assert [rank[3] for rank in found[1 / 2]] == [[count] * RANKS for count in choices(1 / 2).bincount().tolist()]
    for other in others:
        assert first[1] / other[1] == pytest.approx(7, rel=0.15)  # busy as its tokens: ½ to 1/14
        assert first[2] > 2 * other[2]


def of_unknown_choices():
    device = join(numbers=False)
    with device:
        scores = torch.zeros(64, RANKS) @ torch.zeros(RANKS, RANKS)
    torch.bincount(scores.argmax(1), minlength=RANKS)


def test_what_the_host_knows_stays_known_through_operators_whose_shape_depends_on_it():
    with simgpu.one_of(RANKS, rank=3) as cluster:
        device = torch.device("simgpu", cluster.local_rank)
        chosen = torch.tensor([0, 2, 2, 7, 3, 2, 0])
        here = chosen.to(device)
        for what in (
            lambda t: torch.bincount(t, minlength=RANKS),
            lambda t: torch.bincount(t).cumsum(0),
            lambda t: (t == 2).nonzero(),
            lambda t: torch.unique(t),
            lambda t: t[t > 1],
            lambda t: torch.zeros_like(t).index_add_(0, t % 3, t),
        ):
            expected, found = what(chosen), what(here)
            assert found.device == device and found.tolist() == expected.tolist()
        assert here[here > 1].shape == (5,)
        for unknown in (torch.rand(7, device=device).argmax(0, True), torch.empty(7, device=device).long() + here):
            with pytest.raises(RuntimeError, match=r"bincount needs the numbers.*one alone does not know"):
                torch.bincount(unknown)


def test_one_of_many_knows_what_the_others_send_if_all_send_the_same():
    for rank in 0, 3:
        with simgpu.one_of(RANKS, rank=rank) as cluster:
            device = torch.device("simgpu", cluster.local_rank)
            assert layer(device, choices(1 / 2)) == [choices(1 / 2).bincount()[rank]] * RANKS
            for op, of_all in (
                (dist.ReduceOp.SUM, 5 * RANKS), (dist.ReduceOp.MAX, 5), (dist.ReduceOp.MIN, 5), (dist.ReduceOp.AVG, 5),
            ):  # fmt: skip
                said = torch.tensor([5], device=device)
                dist.all_reduce(said, op)
                assert said.item() == of_all
            parts = torch.arange(RANKS, device=device)
            part, whole = torch.empty(1, dtype=torch.long, device=device), torch.empty_like(parts)
            dist.reduce_scatter_single(part, parts)
            dist.all_gather_single(whole, part)
            assert whole.tolist() == [rank * RANKS] * RANKS
