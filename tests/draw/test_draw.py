"""Pictures: well-formed, with a text alternative, the same on every run, all words inside."""

import base64
import dataclasses
import io
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import pytest
from PIL import Image

import simgpu
from lessons import pictures
from lessons.pictures import diagram
from lessons.pictures.all_reduce import all_reduce_on_nodes, who_talks_over_what
from lessons.pictures.start_here import machine
from utils import draw
from utils.draw import palette, svg
from utils.draw.picture import Picture
from utils.draw.svg import text_width
from utils.hardware import links
from utils.hardware.machine import Gpu, Network, look

NS = "{http://www.w3.org/2000/svg}"
HERE = look()
BIG = dataclasses.replace(
    HERE,
    cpu="A Processor With a Very Long Name That Goes On and On at 3.14 GHz, Third Edition",
    usable_cpus=200,
    logical_cpus=256,
    gpus=tuple(Gpu(i, f"NVIDIA H100 80GB HBM3 with a very long name {i}", 2**36, "550.1") for i in range(10)),
    interconnect={(i, j): "NV18" for i in range(10) for j in range(i + 1, 10)},
    networks=tuple(Network(f"a-long-network-name-{i}", 25.0) for i in range(12)),
    system="Linux " + "9" * 200,
    visible="0,1,2,3,4,5,6,7,8,9",
)
NOTHING = dataclasses.replace(
    HERE, cpu="unknown", usable_cpus=None, logical_cpus=None, memory_bytes=None, memory_available_bytes=None,
    gpus=(), networks=(),
)  # fmt: skip
PIPELINE = [
    draw.Span(f"GPU {stage}", begin, begin + length, role, f"{role[0].upper()}{micro + 1}")
    for stage in range(4)
    for micro in range(8)
    for role, begin, length in (
        ("forward", (micro + stage) * 1e-3, 1e-3),
        ("backward", (11 + 2 * (micro + 3 - stage)) * 1e-3, 2e-3),
    )
]
WIRES = [draw.Span(f"GPU {i} → GPU {i + 1}", i * 1e-3, i * 1e-3 + 1e-4, "communication", "x") for i in range(20)]
MEMORY = simgpu.MemorySeries(
    "GPU 0",
    [0, 1, 1, 2],
    {"parameters": [4 * 10**9] * 4, "activations": [0, 9 * 10**9, 5 * 10**9, 0], "other": [1000, 0, 0, 0]},
)
DIAGRAMS = {
    "timeline": lambda: draw.timeline(PIPELINE, title="A pipeline", caption="simulated: 4 × H100"),
    "timeline_many_lanes": lambda: draw.timeline(PIPELINE + WIRES, lanes=None),
    "timeline_late": lambda: draw.timeline([draw.Span("host", 10, 10.00001, "compute", "a label")], title="Word " * 40),
    "memory_over_time": lambda: simgpu.memory_over_time([MEMORY], title="Over time"),
    "memory_over_time_11": lambda: simgpu.memory_over_time([MEMORY] * 11),
    "memory_at_peak": lambda: simgpu.memory_at_peak({"GPU 0": MEMORY.peak(), "GPU 1": {}}),
    "memory_at_peak_20": lambda: simgpu.memory_at_peak({f"GPU {i}": {"other": i, "gradients": 9} for i in range(20)}),
    **{file.stem: lambda name=file.stem: diagram(name) for file in pictures.FILES.glob("*.svg")},
    "topology": draw.topology,
    "topology_1x1": lambda: draw.topology(1, 1),
    "topology_4x8": lambda: draw.topology(4, 8, links.PCIE3, links.INFINIBAND_HDR),
    "topology_cpu": lambda: draw.topology(1, 3, inside=links.DDR5, kind="CPU", title="Three processes"),
    "machine_here": lambda: machine(HERE),
    "machine_big": lambda: machine(BIG),
    "machine_unknown": lambda: machine(NOTHING),
}
CHARTS = {
    "who_talks_over_what": who_talks_over_what,
    "all_reduce_on_nodes": all_reduce_on_nodes,
    "loss_curves": lambda: draw.loss_curves({"rank 0": [2.0, 1.0, 0.5], "rank 1": [2.1, 1.1, 0.6]}),
    "stacked_bars": lambda: draw.stacked_bars(
        {"GPU 0": {"a": 1.0, "b": 2.5}, "GPU 1": {"a": 0.5}},
        {"a": draw.palette.FORWARD, "b": draw.palette.BACKWARD},
        *("seconds", "Two bars of parts"),
        note="simulated",
    ),
    "bars": lambda: draw.bars({"a": 1.0, "b": 2.5}, "seconds", "Two bars", note="simulated"),
    "bars on a fixed axis": lambda: draw.bars(
        {"a ring": 1.0, "a tree": 0.5}, "ms", "Two bars", log=True, axis=(0.1, 9)
    ),
}
TINTS = {
    "#F7F7F7",
    "#D8F0E8",
    "#CFE3F5",
    "#FBE3C0",
    "#CDEBDF",
    "#F3D9E8",
    "#DDDDDD",
}  # light: areas, a grid


@pytest.fixture(scope="module")
def diagrams() -> dict[str, tuple[Picture, ET.Element]]:
    pictures = {name: make() for name, make in DIAGRAMS.items()}
    return {name: (picture, ET.fromstring(picture.data)) for name, picture in pictures.items()}


@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagram_says_what_it_shows(name, diagrams):
    picture, root = diagrams[name]
    assert root.tag == f"{NS}svg"
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.find(f"{NS}desc").text == picture.alt
    assert root.find(f"{NS}title").text.strip()
    assert len(picture.alt) > 60, "too short to stand for a diagram"
    assert picture.alt.endswith(".")


@pytest.mark.parametrize("name", DIAGRAMS)
def test_all_words_are_inside_the_picture(name, diagrams):
    _, root = diagrams[name]
    _, _, width, height = map(float, root.get("viewBox").split())
    texts = root.findall(f".//{NS}text")
    assert texts
    for text in texts:
        size, x, y = (float(text.get(key)) for key in ("font-size", "x", "y"))
        assert size >= 11.5, f"{text.text!r} is too small to read"
        wide = text_width(text.text, size, text.get("font-weight") == "bold", text.get("font-family") == "monospace")
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor")]
        assert left >= 0 and left + wide <= width, f"{text.text!r} leaves the picture at the side"
        assert size <= y <= height - 0.25 * size, f"{text.text!r} leaves the picture at the top or the bottom"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_no_two_texts_lie_over_each_other(name, diagrams):
    _, root = diagrams[name]
    boxes = []
    for text in root.findall(f".//{NS}text"):
        size, x, y = (float(text.get(key)) for key in ("font-size", "x", "y"))
        wide = 0.9 * text_width(
            text.text, size, text.get("font-weight") == "bold", text.get("font-family") == "monospace"
        )
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor")]
        boxes.append((left, y - 0.7 * size, left + wide, y + 0.1 * size, text.text))
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, f"{a[4]!r} and {b[4]!r} overlap"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagram_stands_alone_and_is_the_same_on_every_run(name, diagrams):
    picture, root = diagrams[name]
    assert DIAGRAMS[name]().data == picture.data
    text = picture.data.decode()
    assert "<script" not in text and "<style" not in text and "href" not in text
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    used = set(re.findall(r"url\(#([\w-]+)\)", text))
    assert used == {pattern.get("id") for pattern in root.findall(f".//{NS}pattern")}
    background = root.find(f"{NS}rect")
    assert background.get("fill") == palette.PANEL, "a light panel of its own, for dark pages"
    assert len(picture.data) < 40_000


@pytest.mark.parametrize("name", CHARTS)
def test_chart_is_a_small_png_with_a_text_alternative(name):
    picture = CHARTS[name]()
    assert picture.mime == "image/png"
    assert 2_000 < len(picture.data) < 60_000
    assert Image.open(io.BytesIO(picture.data)).width >= picture.width
    assert len(picture.alt) > 30 and "\n" not in picture.alt


@pytest.mark.parametrize("name", CHARTS)
def test_nothing_of_a_chart_is_cut_off(name):
    image = Image.open(io.BytesIO(CHARTS[name]().data)).convert("L")
    width, height = image.size
    for border in ((0, 0, width, 2), (0, height - 2, width, height), (0, 0, 2, height), (width - 2, 0, width, height)):
        assert image.crop(border).getextrema()[0] > 240, "something runs over the edge of the chart"


def test_every_role_has_its_own_colour_and_its_own_hatch():
    roles = palette.ROLES.values()
    assert {"forward", "backward", "communication", "idle", "memory", "compute"} <= set(palette.ROLES)
    assert len({role.colour for role in roles}) == len({role.hatch for role in roles}) == len(roles)
    for role in roles:
        assert re.fullmatch(r"#[0-9A-F]{6}", role.colour)
        assert role.hatch in svg.HATCHES
    assert len({look.marker for look in palette.SERIES}) == len({look.colour for look in palette.SERIES})
    assert len({look.dash for look in palette.SERIES}) == len(palette.SERIES)


def test_topology_names_ranks_local_ranks_and_speeds(diagrams):
    _, root = diagrams["topology"]
    words = [text.text for text in root.findall(f".//{NS}text")]
    assert [w for w in words if w.startswith("rank ")] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [w for w in words if w.startswith("local rank ")] == ["local rank 0", "local rank 1"] * 2
    assert links.NVLINK4.label in words and links.ETHERNET_25.label in words
    with pytest.raises(ValueError):
        draw.topology(nodes=9)


def test_what_a_notebook_stores():
    picture = diagram("words")
    bundle = picture._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == f"picture: {picture.alt}"
    image = ET.fromstring(bundle["text/html"].replace('">', '"/>'))
    assert image.get("alt") == picture.alt
    header, data = image.get("src").split(",")
    assert header == "data:image/svg+xml;base64"
    assert base64.b64decode(data) == picture.data


def test_show_needs_a_text_alternative_and_closes_figures(capsys):
    figure, axes = plt.subplots()
    axes.plot([1, 2])
    with pytest.raises(ValueError, match="alternative"):
        draw.show(figure)
    draw.show(figure, alt="a rising line")
    assert not plt.fignum_exists(figure.number)
    draw.show("<svg/>", alt="an empty picture")
    draw.show(diagram("words"), alt="another text")
    printed = capsys.readouterr().out
    assert printed == "picture: a rising line\npicture: an empty picture\npicture: another text\n"
    with pytest.raises(ValueError, match="alternative"):
        Picture(b"", "image/png", "  ", 1)


@pytest.mark.parametrize("file", sorted(pictures.FILES.glob("*.svg")), ids=lambda file: file.stem)
def test_a_stored_diagram_has_only_colours_of_the_palette(file):
    named = {value for value in vars(palette).values() if isinstance(value, str) and value.startswith("#")}
    assert set(re.findall(r'(?:fill|stroke)="(#\w+)"', file.read_text(encoding="utf-8"))) <= named | TINTS
