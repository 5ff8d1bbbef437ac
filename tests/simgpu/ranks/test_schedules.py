"""torch's pipeline schedules on simulated ranks: what one process gives, with the idle time that formulas say.

Formulas: Narayanan et al. 2021 (1F1B, interleaved), Qi et al. 2024 (zero bubble: a rank is idle for (p − 1)(F + I − W),
where I and W are the backward pass for inputs and for weights).
"""

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import communication, join
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

import simgpu

RANKS, MICRO_BATCHES = 4, 8

CHUNKS = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "LoopedBFS": 2, "InterleavedZeroBubble": 2,
          "ZBVZeroBubble": 2, "DualPipeV": 2}  # fmt: skip

V_SHAPED = "ZBVZeroBubble", "DualPipeV"


def places(name):
    """Which stages this rank has, of how many."""
    rank, count = dist.get_rank(), RANKS * CHUNKS[name]
    mine = [rank, count - 1 - rank] if name in V_SHAPED else list(range(rank, count, RANKS))
    return mine, count


def mean_square(y, target):
    return (y - target).square().mean()


def run(name, stages, mine, count, x, target, losses=None):
    kind = schedules.get_schedule_class(name)
    schedule = kind(stages if CHUNKS[name] > 1 else stages[0], MICRO_BATCHES, loss_fn=mean_square)
    given = (x,) if 0 in mine else ()
    last = {"target": target} if count - 1 in mine else {}
    return lambda: schedule.step(*given, **last, return_outputs=False, losses=losses)


WIDTH, ROWS, LAYERS = 32768, 2048, 32  # wide, so that messages take little beside products


def measured(name):
    """Shapes: of a step over stages that all take equally long: seconds, busy, peak memory."""
    device = join(numbers=False)
    mine, count = places(name)
    with device:
        parts = [
            nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS // count)]).bfloat16()
            for _ in mine
        ]
        x = torch.zeros(MICRO_BATCHES * ROWS, WIDTH, dtype=torch.bfloat16)
    inside = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device="meta", requires_grad=True)
    stages = [
        PipelineStage(part, i, count, device, input_args=inside, output_args=inside)
        for part, i in zip(parts, mine, strict=True)
    ]
    step = run(name, stages, mine, count, x, x)
    step()
    with simgpu.profile() as prof:
        step()
    return prof.elapsed, prof.busy(device.index), prof.peak_memory(device.index)


def formula(name, p=RANKS, m=MICRO_BATCHES):
    """The share of a step in which a rank is idle; without biases F = I = W."""
    work = CHUNKS[name] * m * 3
    idle = (p - 1) * (1 if name == "InterleavedZeroBubble" else 3)
    return idle / (work + idle)


def test_idle_time_and_memory_are_what_is_written_about_the_schedules(world):
    found = {name: world.run(measured, name) for name in CHUNKS}
    seconds = {name: max(elapsed for elapsed, *_ in ranks) for name, ranks in found.items()}
    idle = {name: 1 - sum(busy for _, busy, _ in found[name]) / RANKS / seconds[name] for name in CHUNKS}
    for name in set(CHUNKS) - set(V_SHAPED):
        assert idle[name] == pytest.approx(formula(name), abs=0.02), (name, idle, formula(name))
    order = "ZBVZeroBubble", "InterleavedZeroBubble", "DualPipeV", "Interleaved1F1B", "1F1B"
    assert [idle[name] for name in order] == sorted(idle[name] for name in order)
    peaks = {name: [peak for *_, peak in ranks] for name, ranks in found.items()}
    _, *later = peaks["1F1B"]  # (of the first stage's input, no gradient)
    assert later == sorted(later, reverse=True) and later[0] - later[1] > 2 * (LAYERS // RANKS - 1) * WIDTH * ROWS
    assert min(peaks["GPipe"]) > max(peaks["1F1B"])
    assert min(peaks["Interleaved1F1B"]) > max(peaks["1F1B"])


def layers(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(count)]


CHUNKS = {
    "GPipe": 1,
    "1F1B": 1,
    "Interleaved1F1B": 2,
    "LoopedBFS": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}


def pipeline(name, chunks, numbers, micro_batches=8):
    device = join(numbers, launch_s=0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    everything = layers(ranks * chunks)
    mine = [rank + ranks * chunk for chunk in range(chunks)]
    if name in ("ZBVZeroBubble", "DualPipeV"):
        mine = [rank, 2 * ranks - 1 - rank]
    stages = [PipelineStage(everything[i].to(device), i, ranks * chunks, device) for i in mine]
    loss_of = nn.MSELoss()
    schedule = schedules.get_schedule_class(name)(stages if chunks > 1 else stages[0], micro_batches, loss_fn=loss_of)
    torch.manual_seed(1)
    x, y = torch.randn(2, 2 * micro_batches, 16)
    inputs = (x.to(device),) if 0 in mine else ()
    targets = {"target": y.to(device)} if ranks * chunks - 1 in mine else {}
    with simgpu.profile() as prof:
        schedule.step(*inputs, **targets)
    busy = prof.busy(rank)
    if not numbers:
        return prof.elapsed, busy, len(communication(prof))
    alone = layers(ranks * chunks)
    loss_of(nn.Sequential(*alone)(x), y).backward()
    gradients = [
        (p.grad.cpu() / 1, q.grad)
        for i in mine
        for p, q in zip(everything[i].parameters(), alone[i].parameters(), strict=True)
    ]
    return prof.elapsed, busy, max((a - b).abs().max().item() for a, b in gradients)


@pytest.mark.parametrize("name", CHUNKS)
def test_torchs_pipeline_schedules_are_one_process_also_with_shapes_only(world, name):
    real = world.run(pipeline, name, CHUNKS[name], True)
    shapes = world.run(pipeline, name, CHUNKS[name], False)
    assert max(worst for *_, worst in real) < 1e-6
    assert [elapsed for elapsed, *_ in shapes] == pytest.approx([elapsed for elapsed, *_ in real], rel=1e-9)
    assert all(sent > 0 for *_, sent in shapes)
