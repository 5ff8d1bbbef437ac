"""AlexNet, the network that made GPUs the tool of deep learning, and that needed two of them.

Source: Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, NIPS 2012.

The paper's figure says that images have 224×224 pixels, which does not fit its first layer (11×11, stride 4, 55×55
outputs). Here images have 224×224 pixels and that layer adds a border of 2, as torchvision does; 227×227 without a
border would give the same 55×55. Local response normalisation is left out: it did not help in larger networks (Simonyan
and Zisserman 2014, section 4.1). Weights start as torch's layers start them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu


class AlexNet(nn.Module):
    """AlexNet in one column: 61,100,840 parameters, with torchvision's layers and names.

    Not the net of 2012 with its columns put together, but the one of Krizhevsky: One weird trick for parallelizing
    convolutional neural networks, 2014: fewer maps in the first layers, and no layer is split.

    Args:
        classes: number of classes.
        dropout: probability of dropout in front of the first two fully connected layers.
    """

    def __init__(self, classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)  # changes nothing for images of 224×224
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, 3, 224, 224]."""
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


class Column(nn.Module):
    """One of the two columns: half of the maps of each convolution, half of the units of each full layer.

    Layers marked "both" read what both columns made, all others only what this column made.
    """

    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 48, 11, stride=4, padding=2)
        self.conv2 = nn.Conv2d(48, 128, 5, padding=2)
        self.conv3 = nn.Conv2d(2 * 128, 192, 3, padding=1)  # both
        self.conv4 = nn.Conv2d(192, 192, 3, padding=1)
        self.conv5 = nn.Conv2d(192, 128, 3, padding=1)
        self.fc6 = nn.Linear(2 * 128 * 6 * 6, 2048)  # both
        self.fc7 = nn.Linear(2 * 2048, 2048)  # both
        self.fc8 = nn.Linear(2 * 2048, classes)  # both
        self.dropout = nn.Dropout(dropout)

    def conv1_to_conv2(self, images: Tensor) -> Tensor:
        """[batch, 3, 224, 224] → [batch, 128, 13, 13]"""
        maps = max_pool2d(relu(self.conv1(images)), 3, stride=2)  # 3×3 every 2 pixels: the windows overlap
        return max_pool2d(relu(self.conv2(maps)), 3, stride=2)

    def conv3_to_conv5(self, maps: Tensor) -> Tensor:
        """[batch, 256, 13, 13] of both columns → [batch, 4608]"""
        maps = relu(self.conv4(relu(self.conv3(maps))))
        return max_pool2d(relu(self.conv5(maps)), 3, stride=2).flatten(1)

    def full6(self, values: Tensor) -> Tensor:
        """[batch, 9216] of both columns → [batch, 2048]"""
        return self.dropout(relu(self.fc6(values)))

    def full7(self, values: Tensor) -> Tensor:
        """[batch, 4096] of both columns → [batch, 2048]"""
        return self.dropout(relu(self.fc7(values)))


class TwoColumnAlexNet(nn.Module):
    """The net of 2012 on two devices: 60,965,224 parameters, half of them on each.

    Args:
        classes: number of classes; column 0 computes the first half of them.
        devices: where column 0 and column 1 live.
        dropout: probability of dropout after the first two fully connected layers.
    """

    def __init__(
        self, classes: int = 1000, devices: Sequence[str | torch.device] = ("cpu", "cpu"), dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.devices = first, second = tuple(devices)
        self.column0 = Column(classes - classes // 2, dropout).to(first)
        self.column1 = Column(classes // 2, dropout).to(second)

    def exchange(self, half0: Tensor, half1: Tensor) -> tuple[Tensor, Tensor]:
        """Each device sends its half to the other one; then both hold the whole, column 0 first."""
        first, second = self.devices
        whole0 = torch.cat([half0, half1.to(first)], dim=1)
        whole1 = torch.cat([half0.to(second), half1], dim=1)
        return whole0, whole1

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes], on the first device, of images [batch, 3, 224, 224].

        ``x0`` is always on the first device and ``x1`` on the second. GPUs run what they are given without the
        program waiting for it, so the two columns compute at the same time.
        """
        first, second = self.devices
        x0, x1 = images.to(first), images.to(second)
        x0, x1 = self.column0.conv1_to_conv2(x0), self.column1.conv1_to_conv2(x1)
        x0, x1 = self.exchange(x0, x1)  # conv3 sees both columns
        x0, x1 = self.column0.conv3_to_conv5(x0), self.column1.conv3_to_conv5(x1)
        x0, x1 = self.exchange(x0, x1)  # fc6 sees both columns
        x0, x1 = self.column0.full6(x0), self.column1.full6(x1)
        x0, x1 = self.exchange(x0, x1)  # fc7 sees both columns
        x0, x1 = self.column0.full7(x0), self.column1.full7(x1)
        x0, x1 = self.exchange(x0, x1)  # fc8 sees both columns
        x0, x1 = self.column0.fc8(x0), self.column1.fc8(x1)
        return torch.cat([x0, x1.to(first)], dim=1)
