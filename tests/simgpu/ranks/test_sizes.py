"""What does not fit is told on every rank in one sentence, with numbers and with shapes only alike; what fits works."""

import io

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import communication, join
from torch import nn
from torch.distributed import _symmetric_memory
from torch.distributed.nn import functional as differentiable
from torch.distributed.optim import ZeroRedundancyOptimizer

import simgpu
from utils.ranks import World

RANKS = 3


@pytest.fixture(scope="module")
def world():
    with World(RANKS, backend="gloo", timeout=120) as world:
        yield world


@pytest.fixture(params=[True, False], ids=["numbers", "shapes"])
def numbers(request):
    return request.param


def told(call):
    """What the error says, if there is one."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return "accepted"


def alike_on_all(numbers):
    device = join(numbers)
    one = torch.ones(6, device=device)

    def new(n, dtype=torch.float32):
        return torch.zeros(n, device=device, dtype=dtype)

    calls = {
        "got one of 1": lambda: dist.all_gather([new(6)], one),
        "giving the ranks 6, 6, 6 elements, expecting 5, 5, 5": lambda: dist.all_gather([new(5)] * 3, one),
        "shape (7,) cannot be shared out": lambda: dist.all_gather_single(new(7), one),
        "giving the ranks 2, 2, 2 elements, expecting 3, 3, 3": lambda: dist.reduce_scatter_single(new(3), one),
        "list of 3 tensors": lambda: dist.reduce_scatter(new(6), [one]),
        "6 rows, not [1, 2, 2]": lambda: dist.all_to_all_single(new(6), one, [1, 2, 2], [2, 2, 2]),
        "6 rows, not [6]": lambda: dist.all_to_all_single(new(6), one, [6], [6]),
        "giving the ranks 2, 2, 2 elements, expecting 4": lambda: dist.all_to_all_single(new(12), one),
        "(7,) cannot": lambda: dist.all_to_all_single(new(7), new(7)),
        "giving the ranks 3, 3, 3 elements, expecting 1": lambda: dist.all_to_all([new(1)] * 3, [new(3)] * 3),
        "no rank 7": lambda: dist.broadcast(one, 7),
        "must be contiguous": lambda: dist.all_reduce(torch.ones(1, device=device).expand(4)),
        "strides (1, 2)": lambda: dist.broadcast(new(4).view(2, 2).t(), 0),
        "no type int16": lambda: dist.all_reduce(new(4, torch.int16)),
        "float32 and int64": lambda: dist.all_gather_single(new(18, torch.int64), one),
        "no BXOR": lambda: dist.all_reduce(new(4, torch.int64), dist.ReduceOp.BXOR),
    }
    return {sentence: told(call) for sentence, call in calls.items()}


def test_a_mistake_of_all_ranks_is_told_to_each_with_what_it_gave(world, numbers):
    for said in world.run(alike_on_all, numbers):
        assert all(part in sentence and "\n" not in sentence for part, sentence in said.items()), said


def of_one_rank(numbers):
    device = join(numbers)
    rank = dist.get_rank()

    def new(n, dtype=torch.float32):
        return torch.zeros(n, device=device, dtype=dtype)

    splits = [[1, 2, 3], [2, 2, 2], [2, 2, 2]][rank]
    calls = {
        "rank 0: all-to-all of float32, giving the ranks 1, 2, 3 elements, expecting 1, 2, 3 of them; ranks 1, 2: ": (
            lambda: dist.all_to_all_single(new(6), new(6), splits, splits)
        ),
        "rank 0: gather of float32, root 0, giving the ranks 4, 0, 0 elements, expecting 3, 3, 3": (
            lambda: dist.gather(new(4), [new(3)] * 3 if rank == 0 else None, dst=0)
        ),
        "rank 1: gather of float32, root 0, giving the ranks 5, 0, 0": (
            lambda: dist.gather(new(4 + (rank == 1)), [new(4)] * 3 if rank == 0 else None, dst=0)
        ),
        "rank 2: scatter: it needs a list of 3 tensors, one for each rank, and got one of 1": (
            lambda: dist.scatter(new(4), [new(4)] if rank == 2 else None, src=2)
        ),
        "rank 2: all-gather of 12 float32, giving the ranks 5, 5, 5 elements, expecting 3, 4, 5": (
            lambda: dist.all_gather(
                [new(4), new(4), new(4)] if rank < 2 else [new(3), new(4), new(5)], new(4 + rank // 2)
            )
        ),
        "rank 1: all-reduce of 4 int32, SUM": lambda: dist.all_reduce(
            new(4, torch.int32 if rank == 1 else torch.int64)
        ),
        "rank 2: broadcast of 4 float32, root 1": lambda: dist.broadcast(new(4), 1 if rank == 2 else 0),
        "rank 0: all-reduce: NCCL has no type int16": (
            lambda: dist.all_reduce(new(4, torch.int16 if rank == 0 else torch.int32))
        ),
    }
    said = {sentence: told(call) for sentence, call in calls.items()}
    x = torch.ones(2, device=device)
    dist.all_reduce(x)  # the group works on
    return said


def test_a_mistake_of_one_rank_is_told_to_all_with_who_gave_what(world, numbers):
    for said in world.run(of_one_rank, numbers):
        assert all(part in sentence and "\n" not in sentence for part, sentence in said.items()), said


def uneven(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(3.0 * (rank + 1)).reshape(rank + 1, 3).to(device) + 10 * rank
    gathered = [torch.zeros(r + 1, 3, device=device) for r in range(size)]
    dist.all_gather(gathered, mine)
    scattered = torch.zeros(rank + 1, device=device)
    dist.reduce_scatter(scattered, [torch.full((r + 1,), 1.0 + rank, device=device) for r in range(size)])
    turned = [torch.zeros(2, 3, device=device).t() for _ in range(size)]
    dist.all_gather(turned, torch.full((3, 2), float(rank), device=device))
    spectrum = torch.full((2,), complex(rank, 1), device=device)
    dist.broadcast(spectrum, 1)
    return [*gathered, scattered, *turned, spectrum]


def on_simulated_gpus():
    return [tensor.cpu() for tensor in uneven(join())]


def test_what_nccl_allows_works_lists_of_several_sizes_views_in_another_order_complex_numbers(world):
    for rank, (first, second, third, scattered, *turned, spectrum) in enumerate(world.run(on_simulated_gpus)):
        for owner, found in enumerate((first, second, third)):
            expected = torch.arange(3.0 * (owner + 1)).reshape(owner + 1, 3) + 10 * owner
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert scattered.tolist() == [6.0] * (rank + 1)
        assert [found.tolist() for found in turned] == [[[float(owner)] * 2] * 3 for owner in range(RANKS)]
        assert spectrum.tolist() == [1 + 1j] * 2


def swapping(numbers):
    device = join(numbers)
    rank = dist.get_rank()
    if rank == 2:
        return []
    mine = [torch.full((4 + 2 * rank + i,), 10.0 * rank + i, device=device) for i in range(3)]
    theirs = [torch.zeros(6 - 2 * rank + i, device=device) for i in range(3)]
    gets = [dist.irecv(tensor, 1 - rank) for tensor in theirs] if rank else []
    puts = [dist.isend(tensor, 1 - rank) for tensor in mine]
    gets = gets or [dist.irecv(tensor, 1 - rank) for tensor in theirs]
    for work in (*puts, *gets):
        work.wait()
    return [tensor.tolist() for tensor in theirs] if numbers else [tensor.numel() for tensor in theirs]


def test_opposite_messages_of_different_sizes_meet_their_own(world, numbers):
    first, second, _ = world.run(swapping, numbers)
    if numbers:
        assert first == [[10.0 + i] * (6 + i) for i in range(3)]
        assert second == [[0.0 + i] * (4 + i) for i in range(3)]
    else:
        assert (first, second) == ([6, 7, 8], [4, 5, 6])


def after_a_mistake(numbers, sent, expected):
    device = join(numbers)
    rank = dist.get_rank()
    if rank == 2:
        return []
    wrong, right = (
        torch.ones((sent, expected)[rank], device=device),
        torch.full((sent,), 7.0 * (1 - rank), device=device),
    )
    act = (lambda x: dist.send(x, 1)) if rank == 0 else (lambda x: dist.recv(x, 0))
    said = [told(lambda: act(wrong)), told(torch.simgpu.synchronize), told(lambda: act(right))]
    return [*said, right.tolist() if numbers else None]


@pytest.mark.parametrize(("sent", "expected"), [(2, 3), (2000, 3)])
def test_after_a_message_that_does_not_fit_the_next_one_arrives(world, numbers, sent, expected):
    for said in world.run(after_a_mistake, numbers, sent, expected)[:2]:
        mistake, *others, arrived = said
        assert f"a message of {4 * sent:,} bytes meets a recv of {4 * expected} bytes" in mistake
        assert others == ["accepted"] * 2
        assert arrived == ([7.0] * sent if numbers else None)


def everybody_on_gpu_0(way):
    device = join()
    file = io.BytesIO()
    torch.save(torch.ones(2, device=device), file)
    file.seek(0)
    before = torch.simgpu.current_device()
    tensor = {
        "a new tensor": lambda: torch.ones(2, device="simgpu:0"),
        "a model": lambda: nn.Linear(2, 2).to("simgpu:0").bias,
        "from its own": lambda: torch.ones(2, device=device).to("simgpu:0"),
        "the current device": lambda: (torch.simgpu.set_device(0), torch.ones(2, device="simgpu"))[1],
        "loaded": lambda: torch.load(file, map_location="simgpu:0"),
    }[way]()
    torch.simgpu.set_device(before)
    result = (tensor @ torch.ones(2, device="simgpu:0")).device
    return str(tensor.device), str(result), told(lambda: dist.all_reduce(tensor.detach()))


@pytest.mark.parametrize("way", ["a new tensor", "a model", "from its own", "the current device", "loaded"])
def test_gpu_0_is_gpu_0_for_all_and_the_first_collective_says_that_it_is_one_gpu_for_several_ranks(world, way):
    for device, result, sentence in world.run(everybody_on_gpu_0, way):
        assert device == result == "simgpu:0"
        assert "rank 1: Duplicate GPU detected: rank 1 calls all-reduce with a tensor on simgpu:0" in sentence
        assert "its own is simgpu:2" in sentence and "rank 0: all-reduce of 2 float32, SUM" in sentence


def in_objects():
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, got = {"loss": torch.full((2,), 1.0 + rank, device=device)}, [None] * size
    dist.all_gather_object(got, mine)
    box = [mine] if rank == 1 else [None]
    dist.broadcast_object_list(box, src=1)
    collected = [None] * size if rank == 0 else None
    dist.gather_object(mine["loss"], collected, dst=0)
    found = [each["loss"] for each in (*got, *box)] + (collected or [])
    total = sum(each["loss"].to(device) for each in got)
    return [(str(one.device), one.tolist()) for one in found], (str(total.device), total.tolist())


def test_a_gpus_tensor_in_an_object_arrives_on_the_gpu_that_it_was_on(world):
    each = [(f"simgpu:{rank}", [1.0 + rank] * 2) for rank in range(RANKS)]
    for rank, (found, total) in enumerate(world.run(in_objects)):
        assert found == [*each, each[1], *(each if rank == 0 else [])]
        assert total == (f"simgpu:{rank}", [6.0, 6.0])


def gathered_with_a_gradient():
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(2, 3, device=device, requires_grad=True)
    with simgpu.profile() as prof:
        parts = differentiable.all_gather(x, dist.group.WORLD)
        sum((i + 1) * (rank + 1) * part.sum() for i, part in enumerate(parts)).backward()
    first, x.grad = x.grad.cpu(), None
    whole = differentiable._all_gather_base(torch.empty(2 * size, 3, device=device), x, dist.group.WORLD)
    (whole * torch.arange(2.0 * size, device=device)[:, None]).sum().backward()
    return first, x.grad.cpu(), [name for name, *_ in communication(prof)], dist.get_backend()


def test_the_backward_of_a_differentiable_all_gather_is_a_reduce_scatter_as_under_nccl(world):
    for rank, (first, second, names, backend) in enumerate(world.run(gathered_with_a_gradient)):
        assert names == ["all-gather", "reduce-scatter"] and backend == "simccl"
        torch.testing.assert_close(first, torch.full((2, 3), 6.0 * (rank + 1)), rtol=0, atol=0)
        rows = torch.tensor([2.0 * rank, 2.0 * rank + 1]) * RANKS
        torch.testing.assert_close(second, rows[:, None].expand(2, 3), rtol=0, atol=0)


def groups():
    device = join()
    rank = dist.get_rank()
    said = [
        told(lambda: dist.new_group(backend="nccl")),
        told(lambda: dist.new_group([0, 1], None, "cpu:gloo,cuda:nccl")),
        told(lambda: _symmetric_memory.enable_symm_mem_for_group(dist.group.WORLD.group_name)),
        told(lambda: _symmetric_memory.empty(4, device=device)),
    ]
    x = torch.full((2,), 1.0 + rank, device=device)
    part = dist.split_group(split_ranks=[[0, 2], [1]])
    dist.all_reduce(x, group=part)
    none = dist.split_group(split_ranks=[[0, 1]])
    dist.destroy_process_group()
    said += [told(lambda: dist.init_process_group("cpu:gloo,cuda:nccl"))]
    return said, x.tolist(), none is None


def test_groups_for_nccl_and_symmetric_memory_are_refused_in_a_sentence_and_split_group_works(world):
    ranks = world.run(groups)
    for said, _, _ in ranks:
        nccl, both, enabled, memory, again = said
        assert all("'simccl'" in sentence for sentence in (nccl, both, again)), said
        assert all("use the collectives of torch.distributed" in sentence for sentence in (enabled, memory))
    assert [x for _, x, _ in ranks] == [[4.0, 4.0], [2.0, 2.0], [4.0, 4.0]]
    assert [none for *_, none in ranks] == [False, False, True]


def resumed():
    device = join()

    def make(step_at):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(step_at)
        return net, (ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1) if step_at == device else None)

    (net, optimizer), (alone, _) = make(device), make("cpu")
    reference = torch.optim.Adam(alone.parameters(), lr=0.1)

    def step():
        for module, stepper in ((net, optimizer), (alone, reference)):
            stepper.zero_grad()
            module(torch.ones(2, 4, device=next(module.parameters()).device)).square().sum().backward()
            stepper.step()

    step()
    optimizer.consolidate_state_dict(0)
    box = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    optimizer.load_state_dict(box[0])
    step()
    return max((p.cpu() - q).abs().max().item() for p, q in zip(net.parameters(), alone.parameters(), strict=True))


def test_a_sharded_optimizer_goes_on_from_its_state(world):
    assert max(world.run(resumed)) < 1e-6
