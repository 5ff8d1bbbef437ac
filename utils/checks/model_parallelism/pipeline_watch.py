"""What happens on the GPUs during one step of a pipeline, and what the check says about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from utils.checks.model_parallelism.ideal_stages import GPIPE, LAYERS, WIDTH, Case
from utils.checks.model_parallelism.schedules import right_schedule
from utils.checks.verdicts import Wrong

BUBBLE_TOLERANCE = 0.05
ONE_MORE = 0.9  # of a micro-batch: what may be held for a moment beside the micro-batches that wait for backward


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
            wanted = "".join(item[0] for item in right_schedule(gpu, p, m))
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
