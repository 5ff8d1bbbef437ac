"""Simulated against published: steps, peak memory, collectives and copies that others measured on real GPUs.

Each row of ``published.py`` is simulated and printed with its error. What the simulated GPUs were fitted to (shares of
their peaks, see ``simgpu/hardware/kinds.toml``) is marked "fitted" and counts in no median.

    python benchmarks/simgpu_vs_published.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
from collections.abc import Callable, Hashable, Iterator, Sequence

import here
import published
import torch
from layouts import simulate_layout
from many_gpus import RESNETS, length_of, network_options, seconds_of_a_step, simulate_many
from published import Collective, Copy, Step
from published_many import LAYOUTS, MANY_GPUS, WORST_LAYOUT, ManyGPUs
from published_models import BERT, VGG16, ConvNeXt, GPTByHand, ViT
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import simgpu
from simgpu.hardware import gpu as kind_of_gpu
from utils.ranks.output import text_table
from utils.training import models

VITS = {"vit-small": (12, 384, 6), "vit-base": (12, 768, 12), "vit-large": (24, 1024, 16)}
BERTS = {"128": (128, 20), "squad": (384, 1), "512": (512, 80)}
"""Tokens of a sequence, and how many of them have a label."""
TARGETS = {
    "step": (0.15, 0.40),
    "many": (0.20, 0.40),
    "layouts": (0.20, None),
    "memory": (0.05, 0.15),
    "reserved": (0.10, None),
}
"""Median and worst error."""
DIFFERENT, IN_ORDER = 0.15, 0.9
"""Of layouts that differ by more than this in speed, which is the faster one must be right in this share of pairs."""


# --- Training steps -----------------------------------------------------------------------------------------


def _gpt(row: Step, detail: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    model = GPTByHand(layers=detail != "by hand", flash=detail == "flash", tied=detail == "tied")
    tokens = torch.zeros(row.batch, 1024, dtype=torch.long)
    return model, lambda: cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def _bert(row: Step, detail: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    model, (length, labels) = BERT(), BERTS[detail]
    tokens = torch.zeros(row.batch, length, dtype=torch.long)
    masked = torch.zeros(row.batch * labels, dtype=torch.long)
    following = torch.zeros(row.batch, dtype=torch.long)

    def loss() -> Tensor:
        words, next_one = model(tokens, masked)
        return cross_entropy(words, masked) + cross_entropy(next_one, following)

    return model, loss


def _images(row: Step, kind: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    if kind in RESNETS:
        model: nn.Module = models.ResNet50(blocks=RESNETS[kind])
    else:
        others: dict[str, Callable[[], nn.Module]] = {"vgg16": VGG16, "convnext-base": ConvNeXt}
        model = others[kind]() if kind in others else ViT(*VITS[kind], fused=row.year > 2022)
    layout = torch.channels_last if row.channels_last else torch.contiguous_format
    images = torch.zeros(row.batch, 3, 224, 224).to(memory_format=layout)
    labels = torch.zeros(row.batch, dtype=torch.long)
    model = model.to(memory_format=layout)
    return model, lambda: cross_entropy(model(images), labels)


def training_step(row: Step) -> Callable[[], None]:
    """The forward and backward pass of a row, and its optimizer's step, on the current simulated GPU."""
    kind, _, detail = row.model.partition(" ")
    with torch.device("simgpu"):
        if kind == "gpt2":
            model, compute_loss = _gpt(row, detail)
        else:
            model, compute_loss = _bert(row, detail) if kind == "bert-large" else _images(row, kind)
    whole = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(row.precision)
    model.to(whole)
    optimizer: torch.optim.Optimizer | None = None
    if kind == "gpt2":
        optimizer = torch.optim.AdamW(model.parameters())
    elif kind != "bert-large":  # its gradients are summed over many batches before the optimizer's step: left out
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    mixed: contextlib.AbstractContextManager = contextlib.nullcontext()
    if row.precision == "amp":
        mixed = torch.autocast("simgpu", torch.bfloat16 if kind == "gpt2" else torch.float16)

    model.train(not row.infers)

    def step() -> None:
        if optimizer:
            optimizer.zero_grad()
        with mixed, torch.set_grad_enabled(not row.infers):
            loss = compute_loss()
        if not row.infers:
            loss.backward()
        if optimizer and not row.infers:
            optimizer.step()

    return step


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Products of fp32 numbers may, or may not, be computed in TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def simulate_step(row: Step) -> tuple[float, float]:
    """Seconds of one step, and the peak of its memory in GiB."""
    with simgpu.cluster(gpus_per_node=1, gpu=row.gpu, numbers=False), tf32(row.precision == "tf32"):
        step = training_step(row)
        step()  # the optimizer's state comes with the first one
        torch.simgpu.reset_peak_memory_stats()
        with simgpu.profile() as prof:
            step()
        return prof.elapsed, torch.simgpu.max_memory_allocated() / 2**30


# --- Communication ------------------------------------------------------------------------------------------


def simulate_collective(row: Collective) -> float:
    """Seconds of one collective."""
    options = network_options(row.network, "H100")
    with simgpu.cluster(row.nodes, row.per_node, row.gpu, numbers=False, launch_s=0, **options) as cluster:
        part = row.nbytes // (len(cluster) if row.name == "all-gather" else 1)
        tensors = [torch.empty(part, dtype=torch.uint8, device=f"simgpu:{i}") for i in range(len(cluster))]
        run = getattr(simgpu, row.name.replace("-", "_"))
        with simgpu.profile() as prof:
            run(tensors)
        return prof.elapsed


def simulate_copy(row: Copy) -> float:
    """GB/s of one copy of 256 MiB."""
    with simgpu.cluster(1, 2, row.gpu, numbers=False, launch_s=0):
        near = torch.empty(2**28, dtype=torch.uint8, device="simgpu:0")
        source = torch.empty(2**28, dtype=torch.uint8)
        if row.kind in ("own", "peer"):
            source = torch.empty(2**28, dtype=torch.uint8, device=f"simgpu:{int(row.kind == 'peer')}")
        elif row.kind == "pinned":
            source = source.pin_memory()
        with simgpu.profile() as prof:
            near.copy_(source)
        return (2 if row.kind == "own" else 1) * 2**28 / 1e9 / prof.elapsed


# --- The report ---------------------------------------------------------------------------------------------


class Report:
    """Rows of one table, and the errors of those that were predicted."""

    def __init__(self, title: str, *heads: str) -> None:
        self.title = title
        self.rows = [[*heads, "measured", "simulated", "error", "", "source"]]
        self.errors: list[float] = []

    def add(self, cells: list[str], measured: float, simulated: float, digits: int, fitted: str, source: str) -> None:
        """One row. Not ``fitted``: it was predicted."""
        error = simulated / measured - 1
        if not fitted:
            self.errors.append(abs(error))
        figures = [f"{measured:,.{digits}f}", f"{simulated:,.{digits}f}", f"{error:+.1%}"]
        self.rows.append([*cells, *figures, f"fitted: {fitted}" if fitted else "", source])

    def text(self, target: tuple[float, float | None] | None = None, note: str = "") -> str:
        """The table, and what it says in one line."""
        median, worst = statistics.median(self.errors), max(self.errors)
        verdict = f"{len(self.errors)} rows predicted: median error {median:.1%}, worst {worst:.1%}"
        if target:
            met = median <= target[0] and (target[1] is None or worst <= target[1])
            wanted = f"{target[0]:.0%}" + (f" and {target[1]:.0%}" if target[1] else " of the median")
            verdict += f" (target {wanted}: {'met' if met else 'MISSED'})"
        return "\n".join([self.title, *text_table(self.rows), verdict, *([note] if note else []), ""])


def in_order(times: Sequence[tuple[Hashable, float, float]]) -> str:
    """Of pairs in the same group whose measured times differ, in how many is the faster one the faster one here?

    Args:
        times: of each layout its group, the measured time and the simulated one.
    """
    right = total = 0
    for (group, measured, simulated), (other, its, here_) in itertools.combinations(times, 2):
        if group == other and max(measured, its) > (1 + DIFFERENT) * min(measured, its):
            total += 1
            right += (measured < its) == (simulated < here_)
    verdict = "met" if right >= IN_ORDER * total else "MISSED"
    return (
        f"The faster layout is the faster one in {right} of {total} pairs of one model on as many GPUs that differ by "
        f"more than {DIFFERENT:.0%} (target {IN_ORDER:.0%}: {verdict})"
    )


def one_of_each(rows: Sequence[ManyGPUs]) -> list[ManyGPUs]:
    """The first row of each family of models."""
    return list({row.model.split()[0]: row for row in reversed(rows)}.values())


def several(quick: bool) -> None:
    """Print the rows with several GPUs; quick: few of them."""
    head = ("model", "GPUs", "batch", "numbers")
    many = Report("Training steps on several GPUs (DistributedDataParallel, FSDP2), in ms", *head, "recomputed")
    reserved = Report("Reserved memory of GPU 0 (torch's caching allocator, expandable segments), in GiB", *head)
    times: list[tuple[Hashable, float, float]] = []
    too_large: list[str] = []
    for row in one_of_each(MANY_GPUS) if quick else MANY_GPUS:
        with tf32(row.precision == "tf32"):
            found, kept = simulate_many(row)
        measured = seconds_of_a_step(row, row.rate)
        gpus = f"{row.nodes} × {row.per_node} {getattr(row.gpu, 'name', row.gpu)}"
        batch = f"{row.times} × {row.batch}" if row.times > 1 else str(row.batch)
        where, source = [row.model, gpus, batch, row.precision], f"{row.source} ({row.year})"
        many.add([*where, row.checkpointing], measured * 1e3, found * 1e3, 1, "", source)
        tokens = row.times * row.batch * length_of(row)
        times.append(((row.model, gpus), measured / tokens, found / tokens))
        if kept > (room := kind_of_gpu(row.gpu).memory_bytes / 2**30):
            too_large.append(f"It ran, and would not fit here: {row.model}, {kept:.0f} GiB reserved of {room:.0f}.")
        if row.reserved_gib:
            reserved.add(where, row.reserved_gib, kept, 1, "", source)
    print(many.text(TARGETS["many"], "\n".join(too_large)))
    head = ("data", "tensor", "pipeline", "batch")
    layouts = Report("Llama 1B on 8 × H100, ranks of each kind of parallelism, in s a step", *head)
    memory = Report("Peak memory of rank 0, in GiB", *head)
    for layout in LAYOUTS[::3] if quick else LAYOUTS:
        taken, peak = simulate_layout(layout)
        where = [str(n) for n in (layout.data, layout.tensor, layout.pipeline, layout.batch)]
        source = f"{layout.source} ({layout.year})"
        layouts.add(where, layout.seconds, taken, 1, "", source)
        memory.add(where, layout.peak_mib / 1024, peak, 1, "", source)
        times.append(("layouts", layout.seconds, taken))
    print(layouts.text(TARGETS["layouts"], f"{WORST_LAYOUT}\n{in_order(times)}"))
    print(reserved.text(TARGETS["reserved"]))
    print(memory.text(TARGETS["reserved"]))


def main(quick: bool) -> None:
    """Print every row; quick: few of those with several GPUs, which take four fifths of the time."""
    print(here.header(here.facts([])), end="\n\n")
    steps = Report("Training steps on one GPU, in ms", "model", "GPU", "batch", "numbers", "layout")
    memory = Report("Peak memory, in GiB (measured: what torch reserved)", "model", "GPU", "batch", "numbers")
    for row in published.STEPS:
        seconds, peak = simulate_step(row)
        gpu = getattr(row.gpu, "name", row.gpu)
        where, source = (
            [row.model + " inference" * row.infers, gpu, str(row.batch), row.precision],
            f"{row.source} ({row.year})",
        )
        layout = "channels last" if row.channels_last else ""
        if row.rate:
            measured = row.batch * (1024 if row.model.startswith("gpt2") else 1) / row.rate
            steps.add([*where, layout], measured * 1e3, seconds * 1e3, 1, row.calibrates, source)
        if row.peak_gib:
            memory.add(where, row.peak_gib, peak, 2, "", source)
    print(steps.text(TARGETS["step"]))
    print(memory.text(TARGETS["memory"]))
    several(quick)
    collectives = Report("Collectives of NCCL, in µs", "collective", "GPUs", "MiB")
    for each in published.COLLECTIVES:
        where = [each.name, f"{each.nodes} × {each.per_node} {each.gpu}", str(each.nbytes // 2**20)]
        found = simulate_collective(each) * 1e6
        collectives.add(where, each.microseconds, found, 0, each.calibrates, f"{each.source} ({each.year})")
    print(collectives.text())
    copies = Report("Large copies, in GB/s", "copy", "GPU")
    for one in published.COPIES:
        found = simulate_copy(one)
        copies.add([one.kind, one.gpu], one.gb_per_s, found, 1, one.calibrates, f"{one.source} ({one.year})")
    print(copies.text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few of the rows with several GPUs")
    main(parser.parse_args().quick)
