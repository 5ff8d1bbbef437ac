"""What the tests of simulated GPUs share: small models, training them, and comparing bit by bit."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it anyway: before the line with gc.freeze
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

import simgpu
from utils.training.models import GPT, GPTConfig

gc.freeze()  # torch's own objects need not be looked at by every gc.collect() of a test

TINY_GPT = GPTConfig(layers=2, heads=2, width=16, vocabulary=11, context=8)
BLOCK = 512  # bytes: the allocator's unit

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def ones(*shape: int, gpu: int) -> Tensor:
    return torch.ones(*shape, device=f"simgpu:{gpu}")


def square(gpu: int = 0) -> Tensor:
    return ones(4, 4, gpu=gpu)


def default(gpu: int = 0) -> simgpu.Stream:
    """The stream of a GPU that is used where a program names none."""
    return torch.simgpu.default_stream(gpu)  # type: ignore[attr-defined]


class SmallCNN(nn.Module):
    """Convolutions (grouped too), batch norm, pooling, dropout, and a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        maps = max_pool2d(relu(self.norm(self.first(images)), inplace=True), 2)
        maps = maps + self.grouped(maps)
        return self.head(self.dropout(nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1)))


class BagOfWords(nn.Module):
    """An embedding with a padding token, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, padding_idx=0)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens).mean(1)))


class Attention(nn.Module):
    """torch's own attention, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        found, _ = self.attention(x, x, x, attn_mask=mask)
        return self.head(found[:, -1])


class LastToken(nn.Module):
    """A GPT whose prediction for the last token is what counts."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.gpt = GPT(GPTConfig(**{**vars(TINY_GPT), **changes}))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.gpt(tokens)[:, -1]


def mlp() -> nn.Module:
    """Linear, LayerNorm, GELU, SiLU and dropout."""
    return nn.Sequential(
        *(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2)),
        *(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 5)),
    )


def encoder() -> nn.Module:
    """torch's TransformerEncoderLayer, with dropout."""
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.1, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(1), nn.Linear(8 * 4, 5))


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def _tokens(*shape: int) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(7))


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (mlp, _numbers(7, 6)),
    "cnn": (SmallCNN, _numbers(7, 3, 8, 8)),
    "embedding": (BagOfWords, _tokens(7, 4)),
    "attention": (Attention, _numbers(7, 4, 8)),
    "encoder layer": (encoder, _numbers(7, 4, 8)),
    "gpt tied": (LastToken, _tokens(3, 8)),
    "gpt untied, dropout": (lambda: LastToken(tied=False, dropout=0.1), _tokens(3, 8)),
    "gpt checkpointing, dropout": (lambda: LastToken(checkpointing=True, dropout=0.1), _tokens(3, 8)),
}
"""How to make each model, and a batch for it. Every model gives at least five logits for each row."""


def built(name: str) -> nn.Module:
    """A model of the basket on the CPU, always with the same numbers."""
    torch.manual_seed(3)
    return MODELS[name][0]()


def train(
    model: nn.Module, batch: Tensor, optimizer: str = "AdamW", *, steps: int = 10, home: str = "cpu"
) -> dict[str, Tensor]:
    """Some steps on one batch. Everything that has numbers afterwards, on the CPU, by name."""
    model.to(home)
    torch.manual_seed(5)  # for dropout
    batch = batch.to(home)
    targets = torch.arange(len(batch), device=home) % 5
    algorithm = OPTIMIZERS[optimizer](model.parameters())
    losses, logits = [], torch.empty(0)
    for _ in range(steps):
        algorithm.zero_grad()
        logits = model(batch)
        loss = cross_entropy(logits, targets)
        loss.backward()
        losses.append(loss.item())
        algorithm.step()
    results = {"losses": torch.tensor(losses, dtype=torch.float64), "logits": logits.detach().cpu()}
    results |= {f"state {name}": value.detach().cpu().clone() for name, value in model.state_dict().items()}
    results |= {f"gradient {name}": p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None}
    return results


def assert_same_bits(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Every tensor equals its counterpart bit for bit, and has the same type."""
    assert expected.keys() == found.keys()
    different = [name for name in expected if not same_bits(expected[name], found[name])]
    assert not different, f"these differ: {different}"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal shapes, types and bits (a NaN equals a NaN); both may be on any device."""
    a, b = a.detach().cpu(), b.detach().cpu()
    return a.dtype is b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(1.5), b.nan_to_num(1.5))


def on_gpu(model: nn.Module, gpu: int) -> nn.Module:
    """A copy of a model on a simulated GPU."""
    return copy.deepcopy(model).to(f"simgpu:{gpu}")


def allocated() -> list[int]:
    """Bytes that each simulated GPU of the cluster holds, after the garbage collector has run."""
    gc.collect()
    return [torch.simgpu.memory_allocated(gpu) for gpu in range(torch.simgpu.device_count())]


def blocks(*sizes: int) -> int:
    """Bytes that tensors of these sizes (in bytes) take, each one rounded up to blocks of 512."""
    return sum(-(-size // BLOCK) * BLOCK for size in sizes)


def happened(prof: simgpu.Profile) -> list[tuple]:
    """The timeline as values that can be compared exactly."""
    return [
        (e.name, e.phase, e.place, e.gpus, e.start, e.end, e.launched, e.host, e.region, e.flops, e.nbytes)
        for e in prof.events
    ]


# The toy GPU: 10¹³ FLOP/s, 10¹² bytes/s, links with α = 10 µs and 10¹⁰ bytes/s, kernels as short as they like.
MM = 2e-4  # a product of two 1000×1000 matrices: 2·10⁹ FLOP
ADD = 1.2e-5  # a sum of two million floats: 3 · 4·10⁶ bytes
COPY = 4.1e-4  # a million floats over a link: 10 µs + 4·10⁶ bytes / 10¹⁰
LAUNCH = 1e-5


def toy(gpus: int = 2, launch_s: float = 0.0, **options: Any) -> simgpu.Cluster:
    """A cluster of toy GPUs, by default with a host that needs no time."""
    return simgpu.cluster(gpus_per_node=gpus, gpu="toy", launch_s=launch_s, **options)


def exactly(seconds: float) -> Any:
    """Equal but for the last bits of the float."""
    return pytest.approx(seconds, rel=1e-9, abs=1e-15)


def million(gpu: int = 0) -> Tensor:
    return torch.ones(1000, 1000, device=f"simgpu:{gpu}")


def elapsed(function: Callable[[], Any]) -> float:
    """Simulated seconds of a call."""
    with simgpu.profile() as prof:
        function()
    return prof.elapsed
