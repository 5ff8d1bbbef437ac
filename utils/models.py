"""Sizes of well-known models, derived from the shapes of their layers (no torch needed).

Only ResNet-50 so far: its gradient is the parcel that the course sends around again and again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

Shape = tuple[int, ...]

BYTES_PER_FP32 = 4


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


def resnet50_parameter_count(classes: int = 1000) -> int:
    """Number of parameters of ResNet-50: 25,557,032 for the 1000 classes of ImageNet."""
    return sum(math.prod(shape) for _, shape in resnet50_parameters(classes))


RESNET50_PARAMETERS = resnet50_parameter_count()
"""25,557,032: what torchvision's documentation lists as ``num_params`` of ResNet50_Weights.IMAGENET1K_V1."""

RESNET50_GRADIENT_BYTES = RESNET50_PARAMETERS * BYTES_PER_FP32
"""102,228,128 bytes: one gradient of ResNet-50 in fp32, 4 bytes for each parameter. About 102 MB."""
