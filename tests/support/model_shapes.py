"""Names and shapes of the parameters of the course's models, derived from their tables: what the networks must have."""

from __future__ import annotations

from collections.abc import Iterator

from utils.training.models import GPTConfig, LlamaConfig

Shape = tuple[int, ...]


def resnet50_parameters(classes: int = 1000) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every parameter tensor of ResNet-50, from the input to the output.

    The names and the order are those of torchvision's ``resnet50``.

    Source: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2016, table 1.
    """

    def convolution(name: str, outputs: int, inputs: int, size: int) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (outputs, inputs, size, size)

    def batch_norm(name: str, channels: int) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (channels,)
        yield f"{name}.bias", (channels,)

    yield from convolution("conv1", 64, 3, 7)
    yield from batch_norm("bn1", 64)
    inputs = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        outputs = 4 * width
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            yield from convolution(f"{name}.conv1", width, inputs, 1)
            yield from batch_norm(f"{name}.bn1", width)
            yield from convolution(f"{name}.conv2", width, width, 3)
            yield from batch_norm(f"{name}.bn2", width)
            yield from convolution(f"{name}.conv3", outputs, width, 1)
            yield from batch_norm(f"{name}.bn3", outputs)
            if block == 0:  # the short cut must change the number of channels too
                yield from convolution(f"{name}.downsample.0", outputs, inputs, 1)
                yield from batch_norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    yield "fc.weight", (classes, inputs)
    yield "fc.bias", (classes,)


def gpt_parameters(config: GPTConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every parameter tensor of ``utils.training.models.GPT``, from the input to the output."""
    width = config.width

    def layer(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)

    def norm(name: str) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)

    yield "embed.tokens.weight", (config.vocabulary, width)
    yield "embed.positions.weight", (config.context, width)
    for block in range(config.layers):
        yield from norm(f"blocks.{block}.norm1")
        yield from layer(f"blocks.{block}.qkv", 3 * width, width)
        yield from layer(f"blocks.{block}.out", width, width)
        yield from norm(f"blocks.{block}.norm2")
        yield from layer(f"blocks.{block}.up", 4 * width, width)
        yield from layer(f"blocks.{block}.down", width, 4 * width)
    yield from norm("head.norm")
    if not config.tied:
        yield "head.output.weight", (config.vocabulary, width)


def llama_parameters(config: LlamaConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every parameter tensor of ``utils.training.models.Llama``, from the input to the output."""
    width, narrow = config.width, config.width // config.heads * config.kv_heads
    yield "tokens.weight", (config.vocabulary, width)
    for block in range(config.layers):
        name = f"blocks.{block}"
        yield f"{name}.norm1.weight", (width,)
        yield f"{name}.q.weight", (width, width)
        yield f"{name}.k.weight", (narrow, width)
        yield f"{name}.v.weight", (narrow, width)
        yield f"{name}.out.weight", (width, width)
        yield f"{name}.norm2.weight", (width,)
        yield f"{name}.gate.weight", (config.hidden, width)
        yield f"{name}.up.weight", (config.hidden, width)
        yield f"{name}.down.weight", (width, config.hidden)
    yield "norm.weight", (width,)
    if not config.tied:
        yield "output.weight", (config.vocabulary, width)
