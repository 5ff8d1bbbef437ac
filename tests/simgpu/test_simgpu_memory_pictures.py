"""Pictures of the simulated GPUs' memory: the peak is never lost, and the numbers are those that were given."""

import random
import re
import xml.etree.ElementTree as ET

import pytest

from simgpu import MemorySeries, memory_at_peak, memory_over_time
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


def legend(picture: Picture) -> list[str]:
    names = {kind.colour: name for name, kind in palette.MEMORY_KINDS.items()}
    return [names[r.get("fill")] for r in ET.fromstring(picture.data).iter(f"{NS}rect") if r.get("fill") in names]


def series(name: str = "GPU 0", **kinds: list[int]) -> MemorySeries:
    length = len(next(iter(kinds.values())))
    return MemorySeries(name, [float(i) for i in range(length)], kinds, 10 * GB)


def test_the_words_tell_each_peak_and_its_largest_kind():
    first = series(parameters=[4 * GB] * 3, activations=[0, 5 * GB, GB])
    second = series("GPU 1", parameters=[4 * GB] * 3, activations=[0, 9 * GB, 0])
    picture = memory_over_time([first, second], title="Two GPUs")
    assert picture.alt == (
        "Two GPUs. Memory of 2 GPUs over 2 s, simulated: GPU 0 holds at most 9 GB of 10 GB, most of it activations "
        "(5 GB); GPU 1 holds at most 13 GB, more than 10 GB, most of it activations (9 GB)."
    )
    assert "GPU 0: peak 9 GB of 10 GB" in words(picture) and "GPU 1: peak 13 GB, more than 10 GB" in words(picture)
    assert {"parameters", "activations", "capacity", "peak"} < set(words(picture))
    assert "gradients" not in words(picture)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_a_panel_for_each_gpu_on_the_same_axes(count):
    picture = memory_over_time([series(f"GPU {i}", parameters=[GB, i * GB, GB]) for i in range(count)])
    assert len(panels(picture)) == count
    assert len({(width, height) for _, _, width, height in panels(picture)}) == 1


def test_more_than_eight_gpus_are_abbreviated():
    picture = memory_over_time([series(f"GPU {i}", parameters=[GB, GB]) for i in range(11)])
    assert len(panels(picture)) == 8
    assert any("and 3 more GPUs" in word for word in words(picture)) and "and 3 more" in picture.alt


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
    scale = 1.04 * max(10 * GB, *(max(one.totals()) for one in all_series))
    for one, (_, y, _, height), top in zip(all_series, panels(picture), tops(picture, "activations"), strict=True):
        assert top == pytest.approx(y + height * (1 - max(one.totals()) / scale), abs=0.4)


def test_a_peak_that_lasts_no_time_is_drawn_and_told():
    one = MemorySeries("GPU 0", [0, 1, 1, 2], {"activations": [GB, 6 * GB, GB, 0]})
    picture = memory_over_time([one])
    ((_, y, _, height),) = panels(picture)
    assert tops(picture, "activations") == [pytest.approx(y + height * (1 - 1 / 1.04), abs=0.4)]
    assert one.peak() == {"activations": 6 * GB}
    assert "GPU 0: peak 6 GB" in words(picture)


def test_kinds_lie_on_each_other_in_their_order():
    picture = memory_over_time([series(other=[GB, GB], parameters=[2 * GB, 2 * GB])])
    (parameters,), (other,) = tops(picture, "parameters"), tops(picture, "other")
    assert other < parameters, "parameters at the bottom"
    assert legend(picture) == ["parameters", "other"]


def test_a_capacity_far_above_is_told_and_not_drawn():
    picture = memory_over_time([MemorySeries("GPU 0", [0, 1], {"parameters": [1000, 2000]}, 80 * GB)])
    assert "GPU 0: peak 2 kB of 80 GB" in words(picture) and "capacity" not in words(picture)
    bars = memory_at_peak({"GPU 0": {"parameters": 1000}}, capacity=80 * GB)
    assert "capacity" not in words(bars) and any("each GPU has 80 GB" in word for word in words(bars))


def test_bars_print_their_bytes():
    peaks = {"GPU 0": {"parameters": 4 * GB, "activations": 5 * GB, "other": 10**6}, "GPU 1": {"parameters": 12 * GB}}
    picture = memory_at_peak(peaks, capacity=10 * GB)
    assert {"GPU 0", "GPU 1", "4 GB", "5 GB", "9 GB", "12 GB", "and 1 MB other", "capacity"} <= set(words(picture))
    assert legend(picture)[:3] == ["parameters", "activations", "other"]
    boxes = [r for r in ET.fromstring(picture.data).iter(f"{NS}rect") if r.get("height") == "34"]
    purple = [float(r.get("width")) for r in boxes if r.get("fill") == palette.MEMORY_KINDS["parameters"].colour]
    assert purple[1] / purple[0] == pytest.approx(3, rel=0.01)
    assert "GPU 1 holds at most 12 GB, more than 10 GB, most of it parameters (12 GB)" in picture.alt
    crowd = memory_at_peak({f"GPU {i}": {"parameters": GB} for i in range(20)})
    assert any("and 4 more GPUs" in word for word in words(crowd))


def test_no_memory_at_all_can_be_drawn():
    assert "holds at most 0 bytes" in memory_at_peak({"GPU 0": {}}).alt
    assert "peak 0 bytes" in memory_over_time([series(other=[0, 0])]).data.decode()


def test_bad_input_gets_one_clear_sentence():
    with pytest.raises(ValueError, match="unknown kind of memory 'activation': did you mean 'activations'"):
        MemorySeries("GPU 0", [0], {"activation": [1]})
    with pytest.raises(ValueError, match="did you mean 'gradients'"):
        memory_at_peak({"GPU 0": {"gradient": 1}})
    with pytest.raises(ValueError, match="2 times, but 1 numbers of bytes for 'other'"):
        MemorySeries("GPU 0", [0, 1], {"other": [1]})
    with pytest.raises(ValueError, match="times must increase, but 1 s comes after 2 s"):
        MemorySeries("GPU 0", [2, 1], {"other": [1, 1]})
    with pytest.raises(ValueError, match="nothing can hold -1 bytes"):
        MemorySeries("GPU 0", [0, 1], {"other": [1, -1]})
    with pytest.raises(ValueError, match="there are no times"):
        MemorySeries("GPU 0", [], {})
    with pytest.raises(ValueError, match="list of series is empty"):
        memory_over_time([])
    with pytest.raises(ValueError, match="everything happens at 3 s"):
        memory_over_time([MemorySeries("GPU 0", [3], {"other": [1]})])
    with pytest.raises(ValueError, match="no GPU was given"):
        memory_at_peak({})
