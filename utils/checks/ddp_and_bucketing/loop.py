"""The training loop that the checks of this lab put around a learner's code, and the same training in one process."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from utils.checks.ddp_and_bucketing import gradients
from utils.checks.ddp_and_bucketing.wire import Wire

if TYPE_CHECKING:
    from torch import Tensor, nn

Facts = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """One training. Its repr is short, because sentences show it.

    Args:
        model: a name in ``small_models.MODELS``.
        optimizer: a name in ``small_models.OPTIMIZERS``.
        cap: of the buckets, in bytes.
        other_order: whether odd ranks compute the branches of the model in another order.
    """

    model: str
    optimizer: str
    cap: int = 0
    other_order: bool = False

    def __repr__(self) -> str:
        cap = f", cap {self.cap:,} bytes" if self.cap else ""
        return f"{self.optimizer}{cap}" + (", ranks with another order" if self.other_order else "")


def where_in(training: Training, when: str) -> str:
    import torch.distributed as dist

    return f"See {when}, {dist.get_world_size()} ranks, {training!r}"


def make(training: Training, seed: int) -> nn.Module:
    import torch
    import torch.distributed as dist

    from utils.checks.ddp_and_bucketing.small_models import MODELS

    torch.manual_seed(seed)
    model = MODELS[training.model]()
    if training.other_order:
        model.backwards = dist.get_rank() % 2 == 1
    return model


class Loop:
    """A training loop beside a reference: one process that has all ranks' data."""

    def __init__(self, wire: Wire, training: Training, model: nn.Module) -> None:
        import torch.distributed as dist

        from utils.checks.ddp_and_bucketing import small_models

        self.models = small_models
        self.wire, self.training, self.model = wire, training, model
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.reference = copy.deepcopy(model)
        optimizer = small_models.OPTIMIZERS[training.optimizer]
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        self.reference_optimizer = optimizer([p for p in self.reference.parameters() if p.requires_grad])
        self.weights = small_models.weights_of(model)
        self.alone: dict[str, dict[str, Tensor | None]] = {"own": {}, "last": {}}
        self.silent = 0  # micro-batches that had to communicate nothing

    def note_gradients(self) -> None:
        """Tell the wire when a gradient is ready; before the learner's code, so that these hooks come first."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: self.wire.ready.append(name))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.wire.phase = name
        try:
            yield
        finally:
            self.wire.phase = ""

    def zero_grad(self, step: int) -> None:
        """As training loops do it: to None; and once to zero."""
        self.optimizer.zero_grad(set_to_none=step != 1)
        self.reference_optimizer.zero_grad()

    def backward(self, step: int, micro: int = 0, parts: int = 1) -> None:
        """This rank's forward and backward, on its own rows."""
        loss = self.models.loss_of(self.model, *self.models.data(step, self.rank, micro)) / parts
        with self.phase("backward"):
            loss.backward()

    def reference_backward(self, step: int, parts: int = 1, experts: tuple[int | None, ...] = ()) -> None:
        """One process computes the mean loss of all ranks' rows, and what this rank has by itself.

        Args:
            step, parts: which rows, and in how many micro-batches.
            experts: for a model that has some, the expert that each rank takes.
        """
        for rank in range(self.ranks):
            if experts:
                self.reference.expert = experts[rank]
            alone, last = copy.deepcopy(self.reference), copy.deepcopy(self.reference)
            for micro in range(parts):
                data = self.models.data(step, rank, micro)
                (self.models.loss_of(self.reference, *data) / parts / self.ranks).backward()
                (self.models.loss_of(alone, *data) / parts).backward()
            (self.models.loss_of(last, *data) / parts).backward()
            if rank == self.rank:
                self.alone = {"own": self.models.gradients_of(alone), "last": self.models.gradients_of(last)}

    def facts(self) -> list[Facts]:
        """What all ranks saw in this step."""
        mine = {
            **self.wire.end_of_step(),
            "gradients": self.models.gradients_of(self.model),
            "right": self.models.gradients_of(self.reference),
            **self.alone,
        }
        return self.wire.gather(mine)

    def step(self) -> None:
        self.optimizer.step()
        self.reference_optimizer.step()

    def judge_end(self, when: str) -> None:
        mine = {
            "parameters": {name: p.detach() for name, p in self.model.named_parameters()},
            "trained": {name: p.detach() for name, p in self.reference.named_parameters()},
        }
        gradients.judge_parameters(self.wire.gather(mine), where_in(self.training, when))
