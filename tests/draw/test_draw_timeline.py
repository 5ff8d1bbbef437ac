"""The timeline of the simulated GPUs: nothing looks busier than it is, whatever the number of spans."""

import random
import re
import time
import xml.etree.ElementTree as ET

import pytest

from utils.draw import Span, palette, timeline
from utils.draw.frame import round_ticks
from utils.draw.picture import Picture
from utils.draw.svg import HATCHES

NS = "{http://www.w3.org/2000/svg}"
NAIVE = [
    Span("GPU 0", 0, 1, "forward", "F"),
    Span("GPU 0 → GPU 1", 1, 1.5, "communication"),
    Span("GPU 1", 1.5, 2.5, "forward", "F"),
    Span("GPU 1", 2.5, 4.5, "backward", "B"),
    Span("host", 0, 0.5, "compute"),
    Span("GPU 0", 5, 8, "backward", "B"),
]


def words(picture: Picture) -> list[str]:
    return [text.text for text in ET.fromstring(picture.data).iter(f"{NS}text")]


def rectangles(picture: Picture, role: str) -> list[tuple[float, float, float, float]]:
    """(x, y, width, height) of everything that is drawn in this role, the legend left out."""
    found = []
    for path in ET.fromstring(picture.data).iter(f"{NS}path"):
        if path.get("fill") == palette.ROLES[role].colour:
            numbers = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-([\d.]+)z", path.get("d"))
            assert "".join("M{} {}h{}v{}h-{}z".format(*each) for each in numbers) == path.get("d")
            found += [tuple(map(float, each[:4])) for each in numbers]
    return found


def lanes(picture: Picture) -> list[tuple[float, float, float, float]]:
    """(x, y, width, height) of the frames around the lanes, from the top."""
    boxes = [box for box in ET.fromstring(picture.data).iter(f"{NS}rect") if box.get("fill") == "none"]
    return [tuple(float(box.get(key)) for key in ("x", "y", "width", "height")) for box in boxes]


def legend(picture: Picture) -> list[str]:
    names = {role.colour: name for name, role in palette.ROLES.items()}
    root = ET.fromstring(picture.data)
    swatches = [names[box.get("fill")] for box in root.iter(f"{NS}rect") if box.get("fill") in names]
    assert set(swatches) <= set(words(picture))
    return swatches


def test_gpus_are_on_top_then_links_then_the_rest():
    spans = [Span(lane, 0, 1, "compute") for lane in ("host", "GPU 10", "GPU 2 → GPU 10", "GPU 2", "GPU 10 → GPU 2")]
    picture = timeline(spans)
    names = [word for word in words(picture) if word.startswith(("GPU", "host"))]
    assert names == ["GPU 2", "GPU 10", "GPU 2 → GPU 10", "GPU 10 → GPU 2", "host"]
    heights = [height for *_, height in lanes(picture)]
    assert len(heights) == 5 and heights[0] == heights[1] > heights[2] == heights[4]


def test_what_comes_after_the_end_of_a_lane_is_neither_idle_nor_counted():
    spans = [Span("GPU 0", 0, 1, "forward"), Span("GPU 1", 1, 4, "forward")]
    left, _, width, _ = lanes(timeline(spans))[0]
    assert [word for word in words(timeline(spans)) if word.startswith("busy")] == ["busy 25 %", "busy 75 %"]
    picture = timeline(spans, until={"GPU 0": 2})
    assert [word for word in words(picture) if word.startswith("busy")] == ["busy 50 %", "busy 75 %"]
    ends = [round((x + wide - left) / width, 2) for x, _, wide, _ in rectangles(picture, "idle")]
    assert ends == [0.5, 1]
    assert "GPU 0 is busy 50 % of its own time" in picture.alt
    late = timeline(spans, end=8, until=4)
    assert [word for word in words(late) if word.startswith("busy")] == ["busy 25 %", "busy 75 %"]
    assert late.alt.startswith("Timeline of 2 GPUs over 8 s")


def test_the_words_tell_how_busy_each_gpu_is():
    picture = timeline(NAIVE, title="Half a model each", caption="simulated: 2 × H100")
    assert picture.alt == (
        "Half a model each. Timeline of 2 GPUs over 8 s, simulated (2 × H100): "
        "GPU 0 is busy 50 % of the time, GPU 1 38 %."
    )
    assert [word for word in words(picture) if word.startswith("busy")] == ["busy 50 %", "busy 38 %"]
    assert "simulated: 2 × H100" in words(picture)
    assert timeline(NAIVE, alt="Something else.").alt == "Something else."
    assert "each is busy 100 %" in timeline([Span(f"GPU {i}", 0, 1, "forward") for i in range(30)]).alt


def test_what_is_drawn_lies_where_the_time_says():
    picture = timeline(NAIVE)
    left, top, width, height = lanes(picture)[0]
    assert (left, top, width / 8, height) == pytest.approx(
        next(r for r in rectangles(picture, "forward") if r[1] == top), abs=0.15
    )
    (back,) = (r for r in rectangles(picture, "backward") if r[1] == top)
    assert back[0] == pytest.approx(left + width * 5 / 8, abs=0.15) and back[2] == pytest.approx(
        width * 3 / 8, abs=0.15
    )
    behind = [(y, wide) for _, y, wide, _ in rectangles(picture, "idle")]
    assert behind == [(lane[1], pytest.approx(width, abs=0.15)) for lane in lanes(picture)[:2]]


def test_the_legend_has_only_what_is_there():
    assert legend(timeline(NAIVE)) == ["forward", "backward", "communication", "compute", "idle"]
    assert legend(timeline([Span("GPU 0", 0, 1, "optimizer")])) == ["optimizer"]
    data = timeline([Span("GPU 0", 0, 1, "optimizer")]).data.decode()
    assert re.findall(r'pattern id="([\w-]+)"', data) == [HATCHES["++"][0]]


def test_spans_at_the_same_time_lie_under_each_other():
    spans = [Span("GPU 0", 0, 2, "backward"), Span("GPU 0", 1, 3, "communication"), Span("GPU 0", 3, 4, "backward")]
    picture = timeline(spans, end=5)
    assert "busy 80 %" in words(picture)
    backward, (communication,) = rectangles(picture, "backward"), rectangles(picture, "communication")
    assert len({y for _, y, _, _ in backward}) == 1
    assert communication[1] >= backward[0][1] + backward[0][3] - 0.1
    (idle,) = rectangles(picture, "idle")
    (lane,) = lanes(picture)
    assert idle[0] == pytest.approx(lane[0] + 0.8 * lane[2], abs=0.15)
    crowd = timeline([Span("GPU 0", 0, 10 - i, "forward", str(i)) for i in range(9)])
    assert any("hidden" in word for word in words(crowd))


@pytest.mark.parametrize("gap", [0, 0.3, 1, 5])
def test_tiny_spans_keep_their_part_of_the_time(gap):
    """Gaps far below a pixel must not be swallowed: they add up."""
    spans = [Span("GPU 0", i * (2 + gap), i * (2 + gap) + (1 if i % 2 else 2), ("forward", "backward")[i % 2])
             for i in range(5000)]  # fmt: skip
    picture = timeline(spans)
    ((_, _, width, _),) = lanes(picture)
    length = max(span.end for span in spans)
    for role in ("forward", "backward"):
        drawn = sum(r[2] for r in rectangles(picture, role)) / width
        truth = sum(span.end - span.start for span in spans if span.role == role) / length
        assert drawn == pytest.approx(truth, rel=0.05)


def crowd(count: int, lanes: int) -> list[Span]:
    draw = random.Random(0)
    spans, ends = [], [0.0] * lanes
    for i in range(count):
        lane, length = i % lanes, draw.choice([1, 1, 40]) * draw.random()
        role = draw.choice(["forward", "backward", "communication", "optimizer", "compute"])
        spans.append(Span(f"GPU {lane}", ends[lane], ends[lane] + length, role, f"k{i}"))
        ends[lane] += length + draw.choice([0, 0.4])
    return spans


@pytest.mark.parametrize(("count", "lanes"), [(10_000, 1), (10_000, 16), (10_000, 50), (700, 16)])
def test_ten_thousand_spans_stay_small_and_quick(count, lanes):
    spans = crowd(count, lanes)
    start = time.process_time()
    picture = timeline(spans)
    assert time.process_time() - start < 20, "far from the second that it may take on a quiet machine"
    assert len(picture.data) < 100_000
    random.Random(1).shuffle(spans)
    assert timeline(spans).data == picture.data, "the order in which spans come does not matter"


def test_many_lanes_are_abbreviated():
    picture = timeline([Span(f"GPU {i}", 0, 1, "forward") for i in range(40)])
    assert len(lanes(picture)) == 15 and "and 25 more lanes" in words(picture)
    assert len(lanes(timeline([Span(f"GPU {i}", 0, 1, "forward") for i in range(16)]))) == 16
    assert "40 GPUs" in picture.alt


@pytest.mark.parametrize(
    ("start", "end", "unit"),
    [(0, 3e-3, "ms"), (0, 2.5, "s"), (0, 4e-7, "ns"), (1e-3, 1.9e-3, "ms"), (10, 10.0002, "µs")],
)
def test_the_axis_has_a_unit_and_a_few_round_ticks(start, end, unit):
    shown = words(timeline([Span("GPU 0", start, end, "forward")], caption=""))
    assert any(word.startswith(f"time ({unit})") for word in shown)
    ticks = [float(word) for word in shown if re.fullmatch(r"[\d.]+", word)]
    assert 4 <= len(ticks) <= 7
    assert all(len(f"{tick:g}") <= 4 for tick in ticks)
    if start == 10:
        assert any("since 10 s" in word for word in shown)


def test_bad_input_gets_one_clear_sentence():
    with pytest.raises(ValueError, match="the span 'F1' in lane 'GPU 0' ends at 1 s, before it starts at 2 s"):
        Span("GPU 0", 2, 1, "forward", "F1")
    with pytest.raises(ValueError, match="unknown role 'foward': did you mean 'forward'"):
        Span("GPU 0", 0, 1, "foward")
    with pytest.raises(ValueError, match="numbers of seconds"):
        Span("GPU 0", 0, float("nan"), "forward")
    with pytest.raises(ValueError, match="there are no spans"):
        timeline([])
    with pytest.raises(ValueError, match="no time to draw between 1 s and 1 s"):
        timeline([Span("GPU 0", 1, 1, "forward")])
    with pytest.raises(ValueError, match="at least 480"):
        timeline(NAIVE, width=100)


def test_round_ticks_for_any_range():
    draw = random.Random(0)
    for _ in range(2000):
        low = draw.choice([0, draw.uniform(0, 5)])
        high = low + 10 ** draw.uniform(-4, 4)
        for least, most in ((4, 7), (3, 5)):
            ticks = round_ticks(low, high, least, most)
            assert least <= len(ticks) <= most
            assert low - 1e-5 * (high - low) <= ticks[0] and ticks[-1] <= high + 1e-5 * (high - low)
