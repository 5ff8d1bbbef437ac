"""What feeds the ranks: who gets which sample, photographs to decode, a look into workers.

The data sets stand here and not in a notebook because workers that are *spawned* import what they need: they cannot
see what a notebook's cell has defined.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, get_worker_info

from utils.training import data

PIXELS = 64
"""Side of the images that ``Photos`` gives."""


def deal(
    length: int, ranks: int, epoch: int = 0, shuffle: bool = True, drop_last: bool = False, seed: int = 0
) -> list[list[int]]:
    """What torch's ``DistributedSampler`` gives to each rank: ``deal(…)[rank]`` are its samples, in its order.

    Args:
        length: number of samples in the data set.
        ranks: world size.
        epoch: what ``set_epoch`` is called with.
        shuffle, drop_last, seed: as ``DistributedSampler`` takes them.
    """
    samplers = [DistributedSampler(range(length), ranks, rank, shuffle, seed, drop_last) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


# ---------------------------------------------------------------------- a load that is worth several workers
def make_photos(folder: str | Path, count: int, side: int = 160, seed: int = 0) -> None:
    """Write ``count`` noisy digits as PNG files of ``side`` × ``side`` pixels; the label is in the file's name."""
    from PIL import Image

    images, labels = data.digit_images()
    noise = numpy.random.default_rng(seed)
    for number in range(count):
        paper = (255 - images[number] * (255 / data.INK)).astype(numpy.uint8)
        large = Image.fromarray(paper).resize((side, side), Image.Resampling.BICUBIC).convert("RGB")
        pixels = numpy.asarray(large) + noise.integers(-12, 13, (side, side, 3))
        file = Path(folder) / f"{number:05}_{labels[number]}.png"
        Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8)).save(file)


class Photos(Dataset):
    """Photographs in a folder: each is decoded, turned by a random angle, cut at a random place, and made small.

    Args:
        folder: filled by ``make_photos``.
        wait: seconds that each file lets wait before it comes, as from a disk on the network. The processor is free
            meanwhile.
    """

    def __init__(self, folder: str | Path, wait: float = 0.0) -> None:
        self.files = sorted(Path(folder).glob("*.png"))
        self.wait = wait

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """The image ``[3, 64, 64]``, float32 from 0 to 1, and its label."""
        from PIL import Image

        time.sleep(self.wait)
        file = self.files[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        angle = torch.empty(()).uniform_(-15, 15).item()
        image = image.rotate(angle, Image.Resampling.BILINEAR, fillcolor="white")
        room = image.width // 8  # a window of 7/8 of the side, somewhere
        x, y = torch.randint(room + 1, (2,)).tolist()
        window = (x, y, x + image.width - room, y + image.height - room)
        image = image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, window)
        return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float() / 255, int(file.stem.rpartition("_")[2])


# ---------------------------------------------------------------------- a look into the workers
class Sight(NamedTuple):
    """What the process that loads a sample sees: itself, and three sources of random numbers (0 to 999)."""

    index: int
    worker: int
    """Number of the worker; −1: no worker, the sample was loaded by the process that trains."""
    pid: int
    private_bytes: int
    """Memory that this process shares with no other."""
    from_python: int
    from_numpy: int
    from_torch: int
    from_own: int
    """Drawn from a numpy generator that the data set made for itself."""
    epoch: int
    """The data set's attribute ``epoch``, as this process has it."""


class Probe(Dataset):
    """A data set whose samples tell about the process that loads them. Use it with ``batch_size=None``.

    Args:
        length: number of samples.

    Attributes:
        loaded: ``[64]``, how many samples each worker has begun to load, in memory that all processes share.
            Entry −1 (the last) counts the process that trains.
        epoch: for the training program to set.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.loaded = torch.zeros(64, dtype=torch.int64).share_memory_()
        self.own = numpy.random.default_rng(0)
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sight:
        info = get_worker_info()
        worker = info.id if info else -1
        self.loaded[worker] += 1
        return Sight(
            index,
            worker,
            os.getpid(),
            private_bytes(),
            random.randrange(1000),
            int(numpy.random.randint(1000)),
            int(torch.randint(1000, ())),
            int(self.own.integers(1000)),
            self.epoch,
        )


def private_bytes(pid: int | None = None) -> int:
    """Memory of a process that it shares with no other, in bytes. None: of this process."""
    import psutil

    return psutil.Process(pid).memory_full_info().uss
