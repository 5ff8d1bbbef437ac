"""The picture of a simulated cluster: who is in it, over which links, and what is left out of a large one."""

import xml.etree.ElementTree as ET

import pytest

from utils.draw import cluster_topology
from utils.draw.picture import Picture
from utils.hardware import links

NS = "{http://www.w3.org/2000/svg}"


def words(picture: Picture) -> list[str]:
    return [text.text for text in ET.fromstring(picture.data).iter(f"{NS}text")]


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 8), (2, 4), (4, 8), (3, 5)])
def test_gpus_are_counted_through_all_nodes(nodes, per_node):
    picture = cluster_topology(nodes, per_node, "H100", links.NVLINK4, links.ETHERNET_25)
    assert [word for word in words(picture) if word.startswith("GPU")] == [f"GPU {i}" for i in range(nodes * per_node)]
    assert [word for word in words(picture) if word.startswith("node")] == [f"node {i}" for i in range(nodes)]
    assert words(picture).count("H100") == nodes * per_node
    assert words(picture).count(links.NVLINK4.label) == (nodes if per_node > 1 else 0)
    assert words(picture).count(links.ETHERNET_25.label) == (1 if nodes > 1 else 0)
    assert "simulated" in words(picture)


def test_the_words_name_links_with_their_speeds():
    alt = cluster_topology(2, 2, "H100", links.NVLINK4, links.INFINIBAND_NDR, links.PCIE5, caption="simulated: x").alt
    for link in (links.NVLINK4, links.INFINIBAND_NDR, links.PCIE5):
        assert link.label in alt
    assert "2 nodes with 2 GPUs each (H100)" in alt and "4 GPUs in all" in alt and "simulated (x)" in alt


def test_bad_input_gets_one_clear_sentence():
    with pytest.raises(ValueError, match="at least one node with one GPU, not 0 × 2"):
        cluster_topology(0, 2, "H100", links.NVLINK4, None)
    with pytest.raises(ValueError, match="2 nodes need a link between them"):
        cluster_topology(2, 2, "H100", links.NVLINK4, None)
    with pytest.raises(ValueError, match="2 GPUs on a node need a link"):
        cluster_topology(1, 2, "H100", None, None)
