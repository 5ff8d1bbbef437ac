"""One training step of a Llama in any layout, on one simulated GPU of each stage (lecture and lab ``choosing``).

Data by FSDP2, or HSDP where there are replicas; tensors with sequence parallelism and a sharded loss; the sequence by
torch's ``context_parallel``; pipelines by 1F1B. Adam's state and the parameters are kept in float32.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

import simgpu
from utils.ranks import World
from utils.training.models import LlamaConfig
from utils.training.models.llama import Block

ORDER = ("pipeline", "replicate", "shard", "context", "tensor")
"""Dimensions of the mesh: those at the end are neighbours, in one node."""

LAYERS = 3, 4  # of a stage are simulated, and two numbers of micro-batches: a step grows evenly with both

_COLUMNS, _ROWS, _NORMS = ("q", "k", "v", "gate", "up"), ("out", "down"), ("norm1", "norm2")


@dataclass(frozen=True)
class Plan:
    """How GPUs share the work. The product of the first five is their number.

    Args:
        replicate: copies of all shards (HSDP).
        shard: over how many the states are sharded (FSDP), besides ``context``.
        context: parts of each sequence.
        tensor: parts of each matrix.
        pipeline: stages.
        micro: sequences of a micro-batch.
        saved: what backward does not keep: see ``LlamaConfig.checkpointing``.
    """

    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro: int = 1
    saved: str = "full"

    def __repr__(self) -> str:
        told = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return f"Plan({', '.join(f'{name}={value!r}' for name, value, usual in told if value != usual)})"

    @property
    def gpus(self) -> int:
        return self.replicate * self.shard * self.context * self.tensor * self.pipeline

    def micro_batches(self, batch: int) -> int:
        """Of each data parallel rank, if all of them have ``batch`` sequences in a step."""
        return batch // (self.replicate * self.shard * self.micro)

    def wrong(self, config: LlamaConfig, gpus: int, batch: int, length: int = 8192) -> str:
        """Why it cannot be run, or ""."""
        if self.gpus != gpus:
            return f"{self.gpus} GPUs are in the plan, and {gpus} are there"
        ranks = self.replicate * self.shard
        if batch % (ranks * self.micro):
            return f"{batch} sequences are not whole micro-batches for {ranks} data parallel ranks"
        if self.micro_batches(batch) < self.pipeline:
            return f"{self.micro_batches(batch)} micro-batches do not fill {self.pipeline} stages"
        if config.layers % self.pipeline or config.kv_heads % self.tensor or length % (2 * self.context * self.tensor):
            return "layers, heads of keys and values, or tokens cannot be shared out equally"
        return ""


def simulate(
    plans: Sequence[Plan],
    config: LlamaConfig,
    gpus: int,
    batch: int,
    length: int = 8192,
    order: Sequence[str] = ORDER,
    **cluster: Any,
) -> list[tuple[float, float]]:
    """Seconds of a step and GiB of the fullest GPU, of each plan, on simulated GPUs that never run out of memory.

    Args:
        batch: sequences of a step, on all GPUs together.
        length: tokens of a sequence.
        order: which dimension of the mesh is outermost, and so on; the pipeline comes first.
        cluster: as for ``simgpu.one_of``: gpu, nodes, network, nics_per_node.

    Raises:
        ValueError: a plan cannot be run.
    """
    for plan in plans:
        if why := plan.wrong(config, gpus, batch, length):
            raise ValueError(f"{plan}: {why}")
    found: dict[Plan, tuple[float, float]] = {}
    for stages in sorted({plan.pipeline for plan in plans}):
        with _processes(stages) as run:
            for plan in dict.fromkeys(one for one in plans if one.pipeline == stages):
                whole = plan.micro_batches(batch)
                least = 1 if stages == 1 else stages + 1  # (a full pipeline, and one micro-batch more)
                counts = [least, least + 1] if whole > least + 1 else [whole]
                ends = run(plan, config, list(product(counts, LAYERS)), length, tuple(order), cluster)
                rows = [_line(config.layers / stages, LAYERS, ends[i : i + 2]) for i in range(0, len(ends), 2)]
                seconds, gib = rows[0] if len(rows) == 1 else _line(whole, counts, rows)
                found[plan] = seconds, rows[-1][1] if stages == 1 else gib  # (more micro-batches need no more memory)
    return [found[plan] for plan in plans]


def _line(at: float, places: Sequence[float], ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What a line through two points has at a third place, for seconds and for GiB."""
    more = (at - places[0]) / (places[1] - places[0])
    (seconds, gib), (other_seconds, other_gib) = ends
    return seconds + more * (other_seconds - seconds), gib + more * (other_gib - gib)


@contextlib.contextmanager
def _processes(stages: int) -> Iterator[Callable[..., list[tuple[float, float]]]]:
    """What runs ``_steps``: this process, or one for each stage, of which the slowest and the fullest count."""
    if stages == 1:
        yield _steps
        return
    with World(stages, backend="gloo", timeout=600, imports=(__name__,)) as world:

        def run(plan: Plan, config: LlamaConfig, sizes: Any, *told: Any) -> list[tuple[float, float]]:
            found = []
            for size in sizes:  # (each in a world of its own: all stages' clocks begin together)
                seconds, gib = zip(*(ends[0] for ends in world.run(_steps, plan, config, [size], *told)), strict=True)
                found.append((max(seconds), max(gib)))
            return found

        yield run


class Stage(nn.Module):
    """Some blocks of a Llama; the first stage has the table of words, the last one the last norm and layer."""

    def __init__(self, config: LlamaConfig, first: bool, last: bool, length: int) -> None:
        super().__init__()
        self.angles = length, config.width // config.heads // 2
        self.tokens = nn.Embedding(config.vocabulary, config.width) if first else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width) if last else None
        self.output = nn.Linear(config.width, config.vocabulary, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.tokens is None else self.tokens(x)
        angles = torch.ones(self.angles, dtype=x.dtype, device=x.device)
        for block in self.blocks:
            x = block(x, angles, angles)
        return x if self.norm is None or self.output is None else self.output(self.norm(x))


def _cut(stage: Stage, mesh: Any) -> None:
    """Tensor and sequence parallelism, as lecture ``tensor_parallelism`` has it."""
    columns = {name: ColwiseParallel() for name in _COLUMNS}
    rows = {name: RowwiseParallel(output_layouts=Shard(1)) for name in _ROWS}
    # The ranks' parts of what a norm gives are gathered once for q, k and v.
    once = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate(), use_local_output=False)
    for block in stage.blocks:
        parallelize_module(block, mesh, columns | rows | {name: SequenceParallel() for name in _NORMS})
        parallelize_module(block, mesh, dict.fromkeys(_NORMS, once))
    ends: dict[str, Any] = {}
    if stage.tokens is not None:
        ends["tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if stage.output is not None:
        scores = {"input_layouts": Shard(1), "output_layouts": Shard(-1), "use_local_output": False}
        ends |= {"norm": SequenceParallel(), "output": ColwiseParallel(**scores)}  # type: ignore[arg-type]
    parallelize_module(stage, mesh, ends)


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def _steps(
    plan: Plan,
    config: LlamaConfig,
    sizes: Sequence[tuple[int, int]],
    length: int,
    order: tuple[str, ...],
    cluster: dict[str, Any],
) -> list[tuple[float, float]]:
    """On one rank of each stage, for some (micro-batches, layers): seconds of a step, and its peak in GiB."""
    stages = plan.pipeline if plan.pipeline > 1 else None
    with simgpu.one_of(plan.gpus, stages=stages, memory=10**13, **cluster) as one:
        device = torch.device("simgpu", one.local_rank)
        mesh = init_device_mesh("simgpu", tuple(getattr(plan, name) for name in order), mesh_dim_names=order)
        states = mesh["shard", "context"]._flatten("states") if plan.context > 1 else mesh["shard"]
        if plan.replicate > 1:
            with warnings.catch_warnings(action="ignore"):  # (of slicing a flattened dimension)
                states = mesh["replicate", "states" if plan.context > 1 else "shard"]
        found = []
        gc.freeze()  # so that this does not take long:
        for m, layers in sizes:
            gc.collect()  # a sharded model goes with its last circle
            own = replace(config, layers=layers, checkpointing=plan.saved)  # type: ignore[arg-type]
            prof = _step(plan, own, m, length // plan.context, mesh, states, device)
            found.append((prof.elapsed, prof.peak_memory(one.local_rank) / 2**30))
        gc.unfreeze()
        return found


def _step(
    plan: Plan, config: LlamaConfig, m: int, length: int, mesh: Any, states: Any, device: torch.device
) -> simgpu.Profile:
    """One step of a new model."""
    p, here = plan.pipeline, mesh.get_local_rank("pipeline")
    with torch.device("meta"):
        stage = Stage(config, here == 0, here == p - 1, length)
    if plan.tensor > 1:
        _cut(stage, mesh["tensor"])
    sharding = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32), "reshard_after_forward": p == 1}
    for module in (*stage.blocks, stage):
        fully_shard(module, mesh=states, **sharding)  # type: ignore[call-overload]
    stage.to_empty(device=device)
    optimizer = torch.optim.AdamW(stage.parameters(), fused=True)
    for parameter in stage.parameters():  # so that Adam's state is there
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    run = _run(plan, stage, config, mesh, device, m, length)
    with contextlib.ExitStack() as stack:
        if plan.context > 1:  # (its tensor stands for those that it would cut: they are cut already)
            whole = [torch.zeros(2 * plan.context, 1, device=device)]
            stack.enter_context(context_parallel(mesh["context"], buffers=whole, buffer_seq_dims=[0]))
        if plan.tensor > 1:
            stack.enter_context(loss_parallel())
        with simgpu.profile() as prof:
            run()
            optimizer.step()
    return prof


def _run(plan: Plan, stage: Stage, config: LlamaConfig, mesh: Any, device: torch.device, m: int, length: int) -> Any:
    """Forward and backward of m micro-batches."""
    micro, p, here = plan.micro, plan.pipeline, mesh.get_local_rank("pipeline")
    tokens = torch.zeros(m * micro, length, dtype=torch.long, device=device)

    def one_by_one() -> None:
        for part in tokens.chunk(m):
            _loss(stage(part), part).backward()

    if p == 1:
        return one_by_one
    like = {"dtype": torch.bfloat16, "device": "meta"}
    hidden = torch.empty(micro, length // plan.tensor, config.width, **like, requires_grad=True)  # type: ignore[arg-type]
    scores = torch.empty(micro, length, config.vocabulary // plan.tensor, **like)  # type: ignore[arg-type]
    part = PipelineStage(
        *(stage, here, p, device),
        input_args=tokens[:micro].to("meta") if here == 0 else hidden,
        output_args=scores if here == p - 1 else hidden,
        group=mesh.get_group("pipeline"),
    )
    schedule = Schedule1F1B(part, m, loss_fn=_loss)
    inputs, targets = (tokens,) if here == 0 else (), {"target": tokens} if here == p - 1 else {}
    return lambda: schedule.step(*inputs, **targets, return_outputs=False)
