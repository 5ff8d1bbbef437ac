"""The one way in which pictures get into notebooks: always with a text alternative.

What the tools do with alternative text (looked up in JupyterLab 4.6 and nbconvert 7.17):

- JupyterLab shows an ``image/png`` output as an ``<img>`` without ``alt``, whatever the output's metadata
  say; an ``image/svg+xml`` output too, and only in a notebook that it trusts: in a fresh clone, where nothing
  has been run yet, the learner would read "Cannot display an untrusted SVG". nbconvert takes ``alt`` from the
  metadata for PNG, but not for SVG.
- All of them show ``<img alt="…" src="data:…">`` in a ``text/html`` output, trusted or not. (GitHub is reported to
  do so too; that was not tried here.)

So a ``Picture`` is stored as ``text/html`` with ``alt``, and as ``text/plain`` "picture: …" for terminals and
for tests. The pictures inside are SVG (diagrams; the same bytes on every run) or PNG (charts by matplotlib).
"""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 144
CSS_PIXELS_PER_INCH = 96


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture and its text alternative. Shows itself as the last line of a cell, or with ``show``.

    Args:
        data: the file's content, SVG or PNG.
        mime: "image/svg+xml" or "image/png".
        alt: what somebody needs to know who cannot see the picture. Not empty.
        width: width on the page, in CSS pixels. It shrinks where there is less room.
    """

    data: bytes
    mime: str
    alt: str
    width: int

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise ValueError("a picture needs a text alternative: say in a sentence what it shows")

    def __repr__(self) -> str:
        return f"picture: {self.alt}"

    @property
    def html(self) -> str:
        """The picture as one ``<img>`` element that needs no other file."""
        source = f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"
        return f'<img alt="{html.escape(self.alt)}" width="{self.width}" src="{source}">'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html}

    def save(self, path: str | Path) -> None:
        """Write the SVG or PNG into a file."""
        Path(path).write_bytes(self.data)


def from_figure(figure: Figure, alt: str) -> Picture:
    """A matplotlib figure as a picture (PNG on white). It is closed, so that it does not show twice."""
    from PIL import Image

    raw, small = io.BytesIO(), io.BytesIO()
    figure.savefig(raw, format="png", dpi=PNG_DPI, facecolor="white")
    if getattr(figure, "number", None) is not None:  # it belongs to pyplot
        from matplotlib import pyplot

        pyplot.close(figure)
    image = Image.open(raw).convert("RGB")  # 64 colours are enough for a chart, and a third of the size
    image.quantize(64, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    width = round(figure.get_size_inches()[0] * CSS_PIXELS_PER_INCH)
    return Picture(small.getvalue(), "image/png", " ".join(alt.split()), width)


def from_svg(svg: str, alt: str, width: int = 900) -> Picture:
    """SVG text as a picture."""
    return Picture(svg.encode(), "image/svg+xml", alt, width)


def show(picture: Picture | Figure | str, alt: str | None = None) -> None:
    """Display a picture in the notebook (in a terminal: print its text alternative).

    Args:
        picture: a Picture (what all functions of ``utils.draw`` return), a matplotlib figure, or SVG text.
        alt: text alternative. A must for figures and SVG text; a Picture brings its own, which ``alt``
            replaces.
    """
    if not isinstance(picture, Picture):
        if alt is None:
            raise ValueError('a picture needs a text alternative: show(figure, alt="what it shows")')
        picture = from_svg(picture, alt) if isinstance(picture, str) else from_figure(picture, alt)
    elif alt is not None:
        picture = Picture(picture.data, picture.mime, alt, picture.width)
    from IPython.display import display

    display(picture)
