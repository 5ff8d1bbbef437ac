"""Pictures of the simulated GPUs' memory: the peak is never lost, and the numbers are those that were given."""

import random
import re
import xml.etree.ElementTree as ET

import pytest

from simgpu import MemorySeries, memory_over_time
from utils.draw import palette
from utils.draw.picture import Picture

NS = "{http://www.w3.org/2000/svg}"

GB = 10**9


def words(picture: Picture) -> list[str]:
    return [text.text for text in ET.fromstring(picture.data).iter(f"{NS}text")]


def panels(picture: Picture) -> list[tuple[float, float, float, float]]:
    boxes = [box for box in ET.fromstring(picture.data).iter(f"{NS}rect") if box.get("fill") == "none"]
    return [tuple(float(box.get(key)) for key in ("x", "y", "width", "height")) for box in boxes]


def tops(picture: Picture, kind: str) -> list[float]:
    """For each panel: the highest place that the kind's area reaches (small is high)."""
    colour = palette.MEMORY_KINDS[kind].colour
    paths = [path.get("d") for path in ET.fromstring(picture.data).iter(f"{NS}path") if path.get("fill") == colour]
    return [min(float(y) for y in re.findall(r"V([\d.]+)", path)) for path in paths]


def series(name: str = "GPU 0", **kinds: list[int]) -> MemorySeries:
    length = len(next(iter(kinds.values())))
    return MemorySeries(name, [float(i) for i in range(length)], kinds)


def test_the_words_tell_each_peak_and_its_largest_kind():
    first = series(parameters=[4 * GB] * 3, activations=[0, 5 * GB, GB])
    second = series("GPU 1", parameters=[4 * GB] * 3, activations=[0, 9 * GB, 0])
    picture = memory_over_time([first, second], title="Two GPUs")
    assert picture.alt == (
        "Two GPUs. Memory of 2 GPUs over 2 s, simulated: GPU 0 holds at most 9 GB, most of it activations (5 GB); "
        "GPU 1 holds at most 13 GB, most of it activations (9 GB)."
    )
    assert "GPU 0: peak 9 GB" in words(picture) and "GPU 1: peak 13 GB" in words(picture)
    assert {"parameters", "activations", "peak"} < set(words(picture))
    assert "gradients" not in words(picture)


@pytest.mark.parametrize("count", [1, 8])
def test_thinning_keeps_the_peak(count):
    """One moment among 20,000, a thousandth of a pixel long, is the fullest."""
    draw = random.Random(0)
    all_series = []
    for gpu in range(count):
        held = [draw.randrange(4 * GB) for _ in range(20_000)]
        held[draw.randrange(20_000)] = 8 * GB
        grads = [draw.randrange(GB) for _ in range(20_000)]
        all_series.append(series(f"GPU {gpu}", activations=held, gradients=grads, parameters=[GB] * 20_000))
    picture = memory_over_time(all_series)
    assert len(picture.data) < 100_000
    assert any("shows its fullest moment" in word for word in words(picture))
    scale = 1.04 * max(max(one.totals()) for one in all_series)
    for one, (_, y, _, height), top in zip(all_series, panels(picture), tops(picture, "activations"), strict=True):
        assert top == pytest.approx(y + height * (1 - max(one.totals()) / scale), abs=0.4)


def test_bad_input_gets_one_clear_sentence():
    with pytest.raises(ValueError, match="unknown kind of memory 'activation': did you mean 'activations'"):
        MemorySeries("GPU 0", [0], {"activation": [1]})
    with pytest.raises(ValueError, match="2 times, but 1 numbers of bytes for 'other'"):
        MemorySeries("GPU 0", [0, 1], {"other": [1]})
    with pytest.raises(ValueError, match="times must increase, but 1 s comes after 2 s"):
        MemorySeries("GPU 0", [2, 1], {"other": [1, 1]})
