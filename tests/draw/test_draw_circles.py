"""The picture of ranks in circles: its words, and which arrows are those of the network."""

import xml.etree.ElementTree as ET

from lessons.pictures.all_reduce import circles
from utils.draw import palette


def test_the_words_tell_the_order_and_close_the_ring() -> None:
    assert "one ring: 0 → 2 → 1 → 0." in circles({"one ring": [0, 2, 1]}).alt


def test_only_arrows_between_nodes_have_the_networks_colour() -> None:
    picture = circles({"a": [0, 1, 2, 3], "b": [1, 0, 3, 2]}, per_node=2)
    heads = [element.get("fill") for element in ET.fromstring(picture.data).iter() if element.tag.endswith("polygon")]
    network, inside = palette.LINKS["network"].colour, palette.LINKS["NVLink"].colour
    assert heads == [inside, network, inside, network] * 2


def test_without_nodes_no_arrow_has_the_colour_of_a_link() -> None:
    data = circles({"": list(range(8))}).data.decode()
    assert not any(look.colour in data for look in palette.LINKS.values())
