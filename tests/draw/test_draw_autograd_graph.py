"""The picture of DataParallel's graph shows the nodes that torch has, on the GPUs where they are, and no others."""

import copy
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

import simgpu
from lessons.pictures.autograd_graph import autograd_graph
from utils.draw.picture import Picture

NS = "{http://www.w3.org/2000/svg}"
ROWS = torch.arange(14.0).reshape(7, 2) / 10


def words(picture: Picture) -> list[str]:
    return [text.text for text in ET.fromstring(picture.data).iter(f"{NS}text")]


def make(gpus: int = 3, layers: int = 1) -> tuple[nn.Module, torch.Tensor]:
    simgpu.cluster(gpus_per_node=gpus, gpu="toy")
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(4, 4), nn.Tanh())]
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), *hidden[2:], nn.Linear(4, 3)).to("simgpu:0")
    return model, nn.DataParallel(model)(ROWS)


def test_a_column_for_each_replica_and_the_leaves_once():
    model, output = make()
    picture = autograd_graph(output, model, title="The graph")
    shown = words(picture)
    assert [f"replica on GPU {gpu}" in shown for gpu in range(4)] == [True, True, True, False]
    assert shown.count("AddmmBackward0") == 6 and shown.count("TanhBackward0") == 3
    assert [word for word in shown if re.fullmatch(r"\d\.\w+ \[.*\]", word)] == [
        "0.weight [4, 2]", "0.bias [4]", "2.weight [3, 4]", "2.bias [3]",
    ]  # fmt: skip
    assert any("3 + 3 + 1" in word for word in shown) and "3 + 3 + 1 rows" in picture.alt
    assert shown.count("→ 2.bias") == shown.count("→ 0.weight") == 3


def test_a_gradient_is_sent_to_the_parameter_that_it_belongs_to():
    """The same model with its layers' names exchanged: the names in the picture follow the parameters."""
    model, output = make()
    renamed = nn.ModuleDict({"last": model[2], "first": model[0]})
    shown = words(autograd_graph(output, renamed))
    below_gather = [word for word in shown if word.startswith("→")]
    assert below_gather[0] == "→ last.bias" and below_gather[-1] == "→ first.weight"


def test_what_cannot_be_drawn_says_why():
    model, output = make()
    with pytest.raises(ValueError, match="no grad_fn"):
        autograd_graph(output.detach(), model)
    with pytest.raises(ValueError, match="made by DataParallel"):
        autograd_graph(copy.deepcopy(model)(ROWS.to("simgpu:0")), model)
