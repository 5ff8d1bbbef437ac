"""What the checks of lab 02 run in a process of their own: stages on simulated GPUs, and a watch over one step.

The GPUs are ideal: only matrix products take time, links and launches take next to none. What is idle then is idle
because of the order of the work, and the formula for the bubble is exact.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.verdicts import Wrong
from utils.hardware.links import Link

GPIPE, ONE_F_ONE_B = "GPipe", "1F1B"
WIDTH, LAYERS = 32, 4
NO_TIME_S = 1e-12  # for a launch and for a message: next to nothing beside the 0.1 ms of a matrix product here
SAME = 1e-3  # gradients in float32, added up in another order, differ by less than this share of the largest
BUBBLE_TOLERANCE = 0.05
ONE_MORE = 0.9  # of a micro-batch: what may be held for a moment beside the micro-batches that wait for backward


def ideal_cluster(gpus: int) -> Any:
    """A simulated cluster in which only matrix products take time, and copies never wait for a link."""
    from utils import simgpu
    from utils.simgpu.hardware import TOY
    from utils.simgpu.work import Port

    link = Link("ideal link", NO_TIME_S, 1e18, 2026, "invented: it takes next to no time", "invented")
    rates = dict.fromkeys(TOY.flops, 10e9)
    gpu = dataclasses.replace(TOY, name="ideal", flops=rates, memory_bytes_per_s=1e18, nvlink=link, host=link)
    cluster = simgpu.cluster(gpus_per_node=gpus, gpu=gpu, launch_s=NO_TIME_S)
    cluster.path = lambda *_: (link, (Port("a link of its own"),))
    return cluster


# --- Stages: split and placed ----------------------------------------------------------------------------------


def pieces_of(name: str) -> list[Any]:
    """A small model on the CPU, as a list of pieces that run one after the other, and its input as the last entry."""
    import torch
    from torch import nn

    from utils.training.models import GPT, GPTConfig

    torch.manual_seed(0)
    if name == "a small GPT":
        config = GPTConfig(layers=6, heads=2, width=32, vocabulary=500, context=16, tied=False)
        return [*GPT(config).pieces(), torch.randint(500, (2, 16))]
    if name == "a funnel":
        widths = (96, 96, 64, 64, 32, 32, 32, 16, 16)
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        return [*(part for layer in layers for part in (layer, nn.Tanh())), torch.randn(3, 96)]
    assert name == "two kinds of numbers"
    precise = [nn.Linear(48, 48).double() for _ in range(3)]
    return [*precise, _ToFloat32(), *(nn.Linear(48, 48) for _ in range(6)), torch.randn(3, 48).double()]


def _ToFloat32() -> Any:
    from torch import nn

    class ToFloat32(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.float()

    return ToFloat32()


def bytes_of(module: Any) -> int:
    """Bytes of a module's parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def stages(make_stages: Any, models: Sequence[tuple[str, int]], best: Callable[[Sequence[int], int], int]) -> list[int]:
    """Make stages of small models and look where the parameters are, how they got there, and whether it all works.

    Args:
        make_stages: the answer.
        models: name of each model, and the number of GPUs for it.
        best: from the bytes of each piece and ``p`` to the smallest possible bytes of the largest stage.

    Returns:
        Bytes of the largest stage of each model.
    """
    return [_stages_of_one_model(make_stages, name, p, best) for name, p in models]


def _stages_of_one_model(make_stages: Any, name: str, p: int, best: Callable[[Sequence[int], int], int]) -> int:
    import torch
    from torch import nn

    from utils import simgpu
    from utils.simgpu.memory import rounded

    *pieces, x = pieces_of(name)
    costs = [bytes_of(piece) for piece in pieces]
    wanted = nn.Sequential(*copy.deepcopy(pieces))(x)
    simgpu.cluster(gpus_per_node=p, gpu="toy")
    with simgpu.profile() as prof:
        made = make_stages(list(pieces), p)
    where = f"{name} on {p} GPUs"
    if not isinstance(made, list | tuple | nn.ModuleList) or not all(isinstance(stage, nn.Module) for stage in made):
        raise Wrong(f"{where}: make_stages returns a list of stages, each an nn.Module", measured=made)
    if len(made) != p:
        raise Wrong(f"{where}: one stage for each GPU", measured=f"{len(made)} stages", expected=f"{p} stages")
    _judge_places(where, made)
    numbers = {id(piece): number for number, piece in enumerate(pieces)}
    order = [numbers[id(module)] for stage in made for module in stage.modules() if id(module) in numbers]
    for number in range(len(pieces)):
        if number not in order:
            raise Wrong(
                f"{where}: piece {number} itself is in no stage: it is missing, or the stage holds a copy of it, "
                "and then an optimizer that knows the model trains other parameters than the stages use."
            )
    if order != sorted(order):
        raise Wrong(f"{where}: the pieces must stay in their order", measured=order, expected=sorted(order))
    for i in range(p):
        fits = sum(rounded(tensor.nbytes) for tensor in itertools.chain(made[i].parameters(), made[i].buffers()))
        if prof.peak_memory(i) > fits:
            raise Wrong(
                f"{where}: more than its own stage was on GPU {i} for a while; a model that needs {p} GPUs does not "
                "fit there: move each stage straight from the CPU to its GPU",
                measured=f"{prof.peak_memory(i):,} bytes",
                expected=f"{fits:,} bytes",
            )
    largest = max(bytes_of(stage) for stage in made)
    if largest > best(costs, p):
        kinds = len({parameter.dtype for piece in pieces for parameter in piece.parameters()}) > 1
        raise Wrong(
            f"{where}: the largest stage can be smaller"
            + ("; the pieces have numbers of 8 and of 4 bytes: count bytes, not numbers" if kinds else ""),
            measured=f"{largest:,} bytes",
            expected=f"{best(costs, p):,} bytes",
        )
    for i, stage in enumerate(made):
        x = stage(x.to(f"simgpu:{i}"))
    if not torch.equal(x.cpu(), wanted):
        raise Wrong(f"{where}: run one after the other, the stages give another result than the model: keep the order.")
    return largest


def _judge_places(where: str, made: Sequence[Any]) -> None:
    for i, stage in enumerate(made):
        places = {str(tensor.device) for tensor in itertools.chain(stage.parameters(), stage.buffers())}
        if places - {f"simgpu:{i}"}:
            raise Wrong(
                f"{where}: stage {i} is not on its GPU",
                measured=", ".join(sorted(places)),
                expected=f"simgpu:{i}",
            )


# --- One step of a pipeline ------------------------------------------------------------------------------------


def ideal_stages(p: int) -> list[Any]:
    """Stages of equal cost: every layer's backward takes twice as long as its forward, also in the first stage."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(WIDTH) / 8)  # so that the input needs a gradient, in each layer
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return torch.tanh(self.linear(x + self.shift))

    return [nn.Sequential(*(Layer() for _ in range(LAYERS))) for _ in range(p)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One step: GPUs, micro-batches, samples in the batch, and whether the targets are classes."""

    p: int
    m: int
    samples: int
    classes: bool = False

    @property
    def even(self) -> bool:
        """Are all micro-batches of the same size, so that the formula for the bubble holds?"""
        return self.samples % self.m == 0

    @property
    def bubble(self) -> float:
        return (self.p - 1) / (self.m + self.p - 1)

    @property
    def text(self) -> str:
        return f"{self.p} GPUs, {self.m} micro-batches, {self.samples} samples"


def steps(train_step: Any, kind: str, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Run one step of a pipeline for each case, and judge its numbers, and how it came to them.

    Args:
        train_step: the answer, called with (stages, batch, targets, loss_fn, micro_batches).
        kind: ``GPIPE`` or ``ONE_F_ONE_B``.
        cases: how large the steps are.

    Returns:
        Figures of each: "bubble", "transfers", "held": the micro-batches' worth of activations at GPU 0's peak.
    """
    return [run_step(train_step, case).judge(kind) for case in cases]


def gpipe_held(case: Case) -> float:
    """How many micro-batches' activations GPU 0 holds at its peak in a GPipe step."""
    return run_step(gpipe, case).held(0)


def run_step(train_step: Any, case: Case) -> Watch:
    """Run one step and judge its numbers; how it came to them is in what is returned."""
    import torch

    p, m, samples = case.p, case.m, case.samples
    torch.set_num_threads(1)  # these tensors are small: more threads would only wait for each other
    cluster = ideal_cluster(p)
    torch.manual_seed(p + 10 * m)
    models = ideal_stages(p)
    batch, targets = torch.randn(samples, WIDTH), torch.randn(samples, WIDTH)
    loss_fn: Callable[..., Any] = torch.nn.functional.mse_loss
    if case.classes:
        targets, loss_fn = torch.randint(WIDTH, (samples,)), torch.nn.functional.cross_entropy
    reference = _Reference(models, batch, targets, loss_fn, m)
    placed = [stage.to(f"simgpu:{i}") for i, stage in enumerate(models)]
    inputs = batch.to("simgpu:0"), targets.to(f"simgpu:{p - 1}")
    watch = Watch(cluster, case, placed)
    with watch:
        loss = train_step(placed, *inputs, loss_fn, m)
    _judge_places(case.text, placed)
    watch.judge_host()
    reference.judge(case.text, loss, [[parameter.grad for parameter in stage.parameters()] for stage in placed])
    return watch


class _Reference:
    """What one device computes in one go, and what known mistakes compute."""

    def __init__(self, stages: Sequence[Any], batch: Any, targets: Any, loss_fn: Any, m: int) -> None:
        from torch import nn

        self.m = m
        self.sizes = [len(parameters) for parameters in (list(stage.parameters()) for stage in stages)]
        self.model = nn.Sequential(*copy.deepcopy(list(stages)))
        self.loss, self.gradients = self._run(batch, targets, loss_fn)
        self.parts = {}
        for split in ("tensor_split", "chunk", "all but the rest"):
            pieces = _split(split, batch, targets, m)
            self.parts[split] = [(len(x) / len(batch), *self._run(x, y, loss_fn)) for x, y in pieces]

    def _run(self, x: Any, y: Any, loss_fn: Any) -> tuple[float, list[Any]]:
        self.model.zero_grad()
        loss = loss_fn(self.model(x), y)
        loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in self.model.parameters()]

    def judge(self, where: str, loss: Any, gradients: list[list[Any]]) -> None:
        """Are gradients and loss those of one device? If not: those of which mistake?"""
        import torch

        without = [i for i, stage in enumerate(gradients) if any(gradient is None for gradient in stage)]
        if len(without) == len(gradients):
            raise Wrong(f"{where}: no stage has gradients: backward is missing, or ran on copies of the stages.")
        if without:
            raise Wrong(
                f"{where}: the parameters of stage {without[0]} have no gradients: a tensor was detached on its way to "
                "the next GPU, and its gradient was not sent back.",
                measured=f"stages with gradients: {[i for i in range(len(gradients)) if i not in without]}",
                expected="all",
            )
        found = [gradient.cpu() for stage in gradients for gradient in stage]
        if not _same(found, self.gradients):
            raise self._wrong(where, found)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise Wrong(f"{where}: return the loss, as a tensor with one number", measured=loss)
        value = float(loss.detach().cpu())
        if abs(value - self.loss) > SAME * abs(self.loss):
            times_m = abs(value / self.m - self.loss) <= SAME * abs(self.loss)
            why = "the sum of the micro-batches' losses without their weights" if times_m else "not that of the batch"
            raise Wrong(f"{where}: the loss that you return is {why}", measured=value, expected=self.loss)

    def _wrong(self, where: str, found: list[Any]) -> Wrong:
        if _same(found, [self.m * gradient for gradient in self.gradients]):
            sentence = "each micro-batch counts fully: weight its loss by its share of the batch"
            return Wrong(f"{where}: the gradients are {self.m} times too large; {sentence}.")
        for parts in self.parts.values():
            weights = [share for share, *_ in parts]
            if sum(weights) < 1 - SAME and any(_same(found, mixed(w, parts)) for w in (weights, [1 / self.m] * self.m)):
                return Wrong(f"{where}: the samples at the end of the batch are left out: m need not divide it.")
            for weights, sentence in self._mistakes(parts):
                if _same(found, mixed(weights, parts)):
                    return Wrong(f"{where}: {sentence}.")
        off = next(
            i for i, pair in enumerate(zip(found, self.gradients, strict=True)) if not _same(*([x] for x in pair))
        )
        stage = next(i for i, end in enumerate(itertools.accumulate(self.sizes)) if off < end)
        worst = float((found[off] - self.gradients[off]).abs().max() / self.gradients[off].abs().max())
        return Wrong(
            f"{where}: the gradients of stage {stage} are not those of one device that gets the whole batch",
            measured=f"the largest is off by {worst:.3g} times its size",
        )

    def _mistakes(self, parts: Sequence[tuple[float, float, Any]]) -> list[tuple[list[float], str]]:
        shares, count = [share for share, *_ in parts], len(parts)
        last = [0.0] * (count - 1)
        mean = (
            "every micro-batch has the same weight, but they are not of the same size: the mean of their means is not "
            "the mean over the batch; weight each by its share of the samples"
        )
        only = "only one micro-batch's gradients are left: later ones must be added to .grad, not replace it"
        return [
            ([1.0] * count, "each micro-batch counts fully: weight its loss by its share of the batch"),
            ([1 / count] * count, mean),
            ([1 / self.m] * count, mean),
            ([*last, 1.0], only),
            ([*last, 1 / self.m], only),
            ([*last, shares[-1]], only),
            ([shares[0], *last], only),
        ]


def mixed(weights: Sequence[float], parts: Sequence[tuple[float, float, Any]]) -> list[Any]:
    """The gradients that micro-batches give together, each with its weight."""
    by_parameter = zip(*(gradients for _, _, gradients in parts), strict=True)
    return [sum(weight * one for weight, one in zip(weights, group, strict=True)) for group in by_parameter]


def _same(found: Sequence[Any], right: Sequence[Any]) -> bool:
    pairs = zip(found, right, strict=True)
    return all(
        one.shape == two.shape and float((one - two).abs().max()) <= SAME * float(two.abs().max()) for one, two in pairs
    )


def _split(how: str, batch: Any, targets: Any, m: int) -> list[tuple[Any, Any]]:
    if how == "all but the rest":
        size = max(1, len(batch) // m)
        return list(zip(batch.split(size)[:m], targets.split(size)[:m], strict=True))
    return list(zip(getattr(batch, how)(m), getattr(targets, how)(m), strict=True))


class Watch:
    """What happens on the GPUs during one step: ``with watch: …``, then ``watch.judge(kind)``."""

    def __init__(self, cluster: Any, case: Case, stages: Sequence[Any]) -> None:
        import torch

        from utils import simgpu

        self.cluster, self.case = cluster, case
        self.syncs = 0
        self.gradient_bytes = [sum(rounded_bytes(parameter) for parameter in stage.parameters()) for stage in stages]
        x = torch.zeros(-(-case.samples // case.m), WIDTH, device=f"simgpu:{case.p - 1}")
        before = torch.simgpu.memory_allocated(case.p - 1)
        y = stages[-1](x)
        self.activation_bytes = torch.simgpu.memory_allocated(case.p - 1) - before  # of one micro-batch, in one stage
        del x, y
        self.prof = simgpu.profile()

    def __enter__(self) -> None:
        import torch

        self.before = [torch.simgpu.memory_allocated(i) for i in range(self.case.p)]
        self.prof.__enter__()
        synchronize = type(self.cluster).synchronize

        def counted(*args: Any) -> None:
            self.syncs += 1
            synchronize(self.cluster, *args)

        self.cluster.synchronize = counted

    def __exit__(self, *exc: object) -> None:
        del self.cluster.synchronize
        self.prof.__exit__(*exc)

    # --- What was measured ---

    @property
    def compute(self) -> list[Any]:
        """The matrix products: nothing else takes time."""
        return [event for event in self.prof.events if event.flops]

    @property
    def transfers(self) -> list[Any]:
        """Copies from one GPU to another."""
        return [event for event in self.prof.events if len(event.gpus) == 2]

    @property
    def bubble(self) -> float:
        """The idle share of all GPUs, from the first matrix product to the last."""
        events = self.compute
        total = self.case.p * (max(event.end for event in events) - min(event.start for event in events))
        return 1 - sum(event.seconds for event in events) / total

    def order(self, gpu: int) -> str:
        """What a GPU did, one letter for each micro-batch's pass: "FFBFBB"."""
        done, letters = {"F": 0, "B": 0}, ""
        for event in self.compute:
            if event.gpus == (gpu,):
                letter = event.phase[0].upper()
                done[letter] += 1
                per_pass = LAYERS if letter == "F" else 2 * LAYERS
                letters += letter if done[letter] % per_pass == 1 else ""
        return letters

    def held(self, gpu: int) -> float:
        """How many micro-batches' activations a GPU held at its peak."""
        above = self.prof.peak_memory(gpu) - self.before[gpu] - self.gradient_bytes[gpu]
        return above / self.activation_bytes

    # --- What it should be ---

    def judge(self, kind: str) -> dict[str, Any]:
        """Raise ``Wrong`` with the likely mistake, or return the figures."""
        self._judge_work()
        self._judge_transfers()
        if kind == GPIPE:
            self._judge_gpipe()
        else:
            self._judge_one_f_one_b()
        return {"bubble": self.bubble, "transfers": len(self.transfers), "held": self.held(0)}

    def judge_host(self) -> None:
        host = [event for event in self.prof.events if event.place.endswith("→ host")]
        if host:
            raise Wrong(
                f"{self.case.text}: a number goes to the host inside the step (.item(), float(…), print, .cpu()), "
                "and the host waits for it, and launches nothing meanwhile: return the loss as a tensor",
                measured=f"{len(host)} copies to the host",
                expected=0,
            )
        if self.syncs:
            raise Wrong(
                f"{self.case.text}: synchronize makes the host wait until all is done, and then no two "
                "micro-batches are on their way at the same time: the streams keep the order without it",
                measured=f"{self.syncs} calls",
                expected=0,
            )

    def _judge_work(self) -> None:
        p, samples = self.case.p, self.case.samples
        one = 2 * samples * WIDTH**2 * LAYERS  # forward of one stage: one product for each layer
        for gpu in range(p):
            ran = {phase: 0 for phase in ("forward", "backward")}
            for event in self.compute:
                if event.gpus == (gpu,):
                    ran[event.phase] = ran.get(event.phase, 0) + event.flops
            ratios = ran["forward"] / one, ran["backward"] / (2 * one)
            if sum(ran.values()) > 1.01 * 3 * one:
                raise Wrong(
                    f"{self.case.text}: GPU {gpu} computes more than one forward and one backward for each "
                    "micro-batch: is something computed twice?",
                    measured=f"{ratios[0]:.2g} × forward, {ratios[1]:.2g} × backward",
                    expected="1 × forward, 1 × backward",
                )
            if sum(ran.values()) < 0.99 * 3 * one:
                raise Wrong(
                    f"{self.case.text}: GPU {gpu} does not compute its stage for all micro-batches",
                    measured=f"{ratios[0]:.2g} × forward, {ratios[1]:.2g} × backward",
                    expected="1 × forward, 1 × backward",
                )

    def _judge_transfers(self) -> None:
        p, m = self.case.p, self.case.m
        expected, found = 2 * (p - 1) * m, self.transfers
        far = sorted({event.gpus for event in found if abs(event.gpus[0] - event.gpus[1]) > 1})
        if far:
            raise Wrong(
                f"{self.case.text}: something is copied from GPU {far[0][0]} to GPU {far[0][1]}, which are no "
                "neighbours: activations go from stage to stage, and their gradients the same way back",
                measured=f"{len(found)} transfers",
                expected=f"{expected} transfers",
            )
        if len(found) != expected:
            why = "one activation forward and one gradient back, over each border, for each micro-batch"
            used = len(found) // (2 * (p - 1)) if p > 1 and len(found) % (2 * (p - 1)) == 0 else m
            if used == 1:
                why = "that is the whole batch at once, no micro-batches"
            elif used < m:
                why = f"that is {used} micro-batches instead of {m}: chunk may give fewer pieces than asked for"
            raise Wrong(
                f"{self.case.text}: {why}", measured=f"{len(found)} transfers", expected=f"{expected} transfers"
            )
        nbytes, right = sum(event.nbytes for event in found), 2 * (p - 1) * self.case.samples * WIDTH * 4
        if nbytes != right:
            raise Wrong(
                f"{self.case.text}: the transfers carry too much or too little", measured=nbytes, expected=right
            )

    def _judge_gpipe(self) -> None:
        orders = [self.order(gpu) for gpu in range(self.case.p)]
        m = self.case.m
        for gpu, order in enumerate(orders):
            if order != "F" * m + "B" * m:
                raise Wrong(
                    f"{self.case.text}: GPipe runs the forward of all micro-batches first, then all backwards; "
                    f"GPU {gpu} does not",
                    measured=order,
                    expected="F" * m + "B" * m,
                )
        self._judge_bubble(
            "a copy waits for everything that was launched on its GPU before: launch it as soon as the stage has its "
            "result, before the stage's next micro-batch"
        )

    def _judge_one_f_one_b(self) -> None:
        p, m = self.case.p, self.case.m
        for gpu in range(p):
            wanted = "".join(item[0] for item in schedule(gpu, p, m))
            if (order := self.order(gpu)) != wanted:
                why = "a backward through the whole graph, for example, runs on all GPUs at once"
                if order == "F" * m + "B" * m:
                    why = "all forwards first is GPipe"
                elif order == "FB" * m:
                    why = "one micro-batch after the other keeps the other GPUs waiting"
                raise Wrong(
                    f"{self.case.text}: GPU {gpu} does not follow its schedule: {why}", measured=order, expected=wanted
                )
        alive = min(p, m)
        if self.case.even and self.held(0) >= alive + ONE_MORE:
            raise Wrong(
                f"{self.case.text}: GPU 0 holds the activations of too many micro-batches: after its backward nothing "
                "may hold on to a micro-batch's input, output or loss",
                measured=f"those of {self.held(0):.1f}",
                expected=f"those of {alive}, and less than one more",
            )
        self._judge_bubble(
            "a plain .to() keeps both GPUs waiting for each other: send on streams of their own, as soon as there is "
            "something to send"
        )

    def _judge_bubble(self, why: str) -> None:
        p, m = self.case.p, self.case.m
        if self.case.even and self.bubble > self.case.bubble * (1 + BUBBLE_TOLERANCE) + 1e-6:
            if abs(self.bubble - (p - 1) / p) < 0.01 and m > 1:
                why = f"one GPU works at a time; {why}"
            raise Wrong(
                f"{self.case.text}: the bubble is too large: {why}",
                measured=f"{self.bubble:.3f}",
                expected=f"(p − 1)/(m + p − 1) = {self.case.bubble:.3f}",
            )


def rounded_bytes(tensor: Any) -> int:
    """Bytes that a tensor takes on a simulated GPU."""
    from utils.simgpu.memory import rounded

    return rounded(tensor.nbytes)


def schedule(stage: int, p: int, m: int) -> list[str]:
    """1F1B: what a stage does, in order. (Narayanan and others: PipeDream, SOSP 2019; with a flush: SC 2021.)"""
    first = min(p - 1 - stage, m)
    steady = [f"{letter}{k}" for i in range(m - first) for letter, k in (("F", first + i), ("B", i))]
    return [f"F{k}" for k in range(first)] + steady + [f"B{k}" for k in range(m - first, m)]


def gpipe(stages: Sequence[Any], batch: Any, targets: Any, loss_fn: Any, micro_batches: int) -> Any:
    """A right GPipe step, for comparison."""
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
