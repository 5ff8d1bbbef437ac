"""AlexNet's columns: halves cross in front of the layers that read from both, and nowhere else."""

import xml.etree.ElementTree as ET

from lessons.pictures.model_on_gpus import LAYERS, two_columns
from utils.draw import palette

NS = "{http://www.w3.org/2000/svg}"


def test_two_arrows_cross_in_front_of_each_layer_that_reads_from_both_columns():
    picture = two_columns({"conv3": 11_000_000, "fc8": 1_000_000}, "Columns")
    root = ET.fromstring(picture.data)
    colours = [line.get("stroke") for line in root.iter(f"{NS}polyline")]
    assert colours.count(palette.GREEN) == 4 and len(colours) == 4 + 2 * (len(LAYERS) - 1)
    words = [text.text for text in root.iter(f"{NS}text")]
    assert "11.0 MB" in words and words.count("½ conv3") == 2
    assert "in front of conv3 (11.0 MB each way), fc8 (1.0 MB each way)" in picture.alt
