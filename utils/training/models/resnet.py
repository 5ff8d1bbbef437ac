"""ResNet-50, with torchvision's names, which can be cut into pieces.

Source: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2016, table 1. As in torchvision, a block
that halves the size of the image does so in its 3×3 convolution, not in the 1×1 convolution before it.
"""

from __future__ import annotations

from torch import Tensor, nn


class Bottleneck(nn.Module):
    """A residual block: 1×1 makes the channels few, 3×3 works on them, 1×1 makes them many; the input is added."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:  # the input must change its shape to be added
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, maps: Tensor) -> Tensor:
        """[batch, inputs, h, w] → [batch, 4·width, h/stride, w/stride]"""
        change = self.relu(self.bn1(self.conv1(maps)))
        change = self.relu(self.bn2(self.conv2(change)))
        change = self.bn3(self.conv3(change))
        return self.relu(change + self.downsample(maps))


class ResNet50(nn.Module):
    """ResNet-50: 25,557,032 parameters for 1000 classes.

    Args:
        classes: number of classes.
        blocks: blocks of each of the four stages. (3, 4, 23, 3) makes ResNet-101, (3, 8, 36, 3) ResNet-152.
    """

    def __init__(self, classes: int = 1000, blocks: tuple[int, int, int, int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._layer(64, 64, blocks[0], stride=1)
        self.layer2 = self._layer(256, 128, blocks[1], stride=2)
        self.layer3 = self._layer(512, 256, blocks[2], stride=2)
        self.layer4 = self._layer(1024, 512, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _layer(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Bottleneck(inputs, width, stride), *rest)

    def pieces(self) -> list[nn.Module]:
        """18 modules that give what ``forward`` gives when run in order: the stem, 16 residual blocks, the head.

        They share their parameters with this model, so a piece can be moved to a device of its own.
        """
        stem = nn.Sequential(self.conv1, self.bn1, self.relu, self.maxpool)
        head = nn.Sequential(self.avgpool, nn.Flatten(1), self.fc)
        return [stem, *self.layer1, *self.layer2, *self.layer3, *self.layer4, head]

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, 3, height, width], usually 224×224."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return self.fc(self.avgpool(maps).flatten(1))
