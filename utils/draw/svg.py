"""A small canvas for diagrams: boxes, text, lines and arrows as SVG, the same bytes on every run.

The SVG stands alone (no scripts, no outside fonts), has a light background of its own, and carries its text
alternative inside (``role="img"``, ``<title>``, ``<desc>``). A text that does not fit its box is an error,
not a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from utils.draw import palette
from utils.draw.palette import Role
from utils.draw.picture import Picture, from_svg

SANS = "sans-serif"
MONO = "monospace"

_STROKE = 'stroke="#000000" stroke-opacity="0.35" stroke-width="1.2" fill="none"'
HATCHES: dict[str, tuple[str, str]] = {
    # matplotlib's spelling: (id of the pattern, what one tile of 8×8 holds)
    "//": ("hatch-slash", f'<path d="M-2,2 L2,-2 M0,8 L8,0 M6,10 L10,6" {_STROKE}/>'),
    "\\\\": ("hatch-back", f'<path d="M-2,6 L2,10 M0,0 L8,8 M6,-2 L10,2" {_STROKE}/>'),
    "xx": ("hatch-cross", f'<path d="M0,0 L8,8 M0,8 L8,0" {_STROKE}/>'),
    "..": ("hatch-dots", '<circle cx="4" cy="4" r="1.3" fill="#000000" fill-opacity="0.35"/>'),
    "||": ("hatch-upright", f'<path d="M4,0 L4,8" {_STROKE}/>'),
    "--": ("hatch-level", f'<path d="M0,4 L8,4" {_STROKE}/>'),
    "||||": ("hatch-dense-upright", f'<path d="M2,0 L2,8 M6,0 L6,8" {_STROKE}/>'),
    "----": ("hatch-dense-level", f'<path d="M0,2 L8,2 M0,6 L8,6" {_STROKE}/>'),
    "++": ("hatch-plus", f'<path d="M4,0 L4,8 M0,4 L8,4" {_STROKE}/>'),
    "**": ("hatch-stars", f'<path d="M4,1 L4,7 M1,2.5 L7,5.5 M1,5.5 L7,2.5" {_STROKE}/>'),
    "oo": ("hatch-rings", f'<circle cx="4" cy="4" r="2.4" {_STROKE}/>'),
}

_WIDTHS = {  # in parts of the font size, for DejaVu Sans, one of the widest fonts that browsers take for sans-serif
    **dict.fromkeys("ijlI", 0.3),
    **dict.fromkeys(" .,:;'|!ftr-/()[]·", 0.42),
    **dict.fromkeys("abcdeghknopqsuvxyz", 0.64),
    **dict.fromkeys("0123456789", 0.64),
    **dict.fromkeys("mwMW%@½…→", 1.0),
}


def text_width(text: str, size: float, bold: bool = False, mono: bool = False) -> float:
    """A careful (rather too large) guess of a text's width in pixels; fonts differ between machines."""
    if mono:
        return len(text) * 0.61 * size
    return sum(_WIDTHS.get(character, 0.8) for character in text) * size * (1.1 if bold else 1.0)


def wrap(text: str, width: float, size: float, bold: bool = False) -> list[str]:
    """The text in lines of at most ``width`` pixels, broken at spaces."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size, bold) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def shorten(text: str, width: float, size: float) -> str:
    """The text, or as much of it as fits into ``width`` pixels, with "…"."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


def number(value: float) -> str:
    """A coordinate with at most one decimal: short, and the same on every machine."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Canvas:
    """Collects shapes and gives a Picture.

    Args:
        width, height: size in pixels; (0, 0) is the top left corner.
        title: the short name of the picture (also its heading, unless ``heading`` is False).
        alt: the text alternative: what the picture says, in sentences.
    """

    def __init__(self, width: float, height: float, title: str, alt: str, heading: bool = True) -> None:
        self.width, self.height, self.title, self.alt = width, height, title, alt
        self._shapes: list[str] = []
        self._hatches: set[str] = set()
        self._add(
            "rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=10, fill=palette.PANEL, stroke=palette.GREY
        )
        if heading:
            self.text(width / 2, 28, title, size=17, bold=True)

    def _add(self, tag: str, content: str = "", **attributes: object) -> None:
        parts = []
        for key, value in attributes.items():
            if value is None:
                continue
            shown = number(value) if isinstance(value, int | float) else str(value)
            parts.append(f"{key.rstrip('_').replace('_', '-')}={quoteattr(shown)}")
        self._shapes.append(f"<{tag} {' '.join(parts)}>{content}</{tag}>" if content else f"<{tag} {' '.join(parts)}/>")

    def text(  # noqa: PLR0913
        self,
        x: float,
        y: float,
        text: str,
        size: float = 14,
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
        colour: str = palette.INK,
        halo: bool = False,
    ) -> None:
        """One line of text; ``y`` is its base line. ``halo`` puts white around it, for text on a hatch."""
        around = {"stroke": "#FFFFFF", "stroke_width": 4, "stroke_linejoin": "round", "paint_order": "stroke"}
        self._add(
            "text",
            escape(text),
            x=x,
            y=y,
            font_size=size,
            text_anchor=anchor,
            fill=colour,
            font_weight="bold" if bold else None,
            font_family=MONO if mono else SANS,
            xml__space="preserve" if mono else None,
            **(around if halo else {}),
        )

    def box(  # noqa: PLR0913
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: str | Sequence[str] = (),
        fill: str = palette.DEVICE,
        role: Role | None = None,
        size: float = 14,
        bold: bool = False,
        mono: bool = False,
        stroke: str = palette.LINE,
        stroke_width: float = 1.2,
        dash: str | None = None,
        radius: float = 6,
        colour: str = palette.INK,
        plate: bool = False,
    ) -> None:
        """A rounded box with lines of text in its middle. With a ``role``: that role's colour and hatch.

        On a hatch the text has a halo, or with ``plate`` (one line) stands on a white plate, on which it reads better.

        Raises:
            ValueError: if the text does not fit into the box.
        """
        lines = [lines] if isinstance(lines, str) else list(lines)
        shape: dict[str, Any] = {"x": x, "y": y, "width": width, "height": height, "rx": radius}
        outline: dict[str, Any] = {"stroke": stroke, "stroke_width": stroke_width, "stroke_dasharray": dash}
        self._add("rect", **shape, fill=role.colour if role else fill, **outline)
        if role:
            self._hatches.add(role.hatch)
            self._add("rect", **shape, fill=f"url(#{HATCHES[role.hatch][0]})")
        step = size * 1.3
        if len(lines) * step > height + 0.5:
            raise ValueError(f"{len(lines)} lines of size {size} need {len(lines) * step:.0f} pixels of {height}")
        for i, line in enumerate(lines):
            if text_width(line, size, bold, mono) > width - 4:
                raise ValueError(f"{line!r} needs {text_width(line, size, bold, mono):.0f} pixels of {width - 4:.0f}")
            y_line = y + height / 2 + (i - (len(lines) - 1) / 2) * step + size * 0.35
            if plate:
                wide, high = min(text_width(line, size, bold, mono) + 6, width - 4), min(size * 1.3, height - 4)
                left, top = x + (width - wide) / 2, y + (height - high) / 2
                self._add("rect", x=left, y=top, width=wide, height=high, rx=3, fill=palette.PANEL)
            halo = role is not None and not plate
            self.text(x + width / 2, y_line, line, size, bold=bold, mono=mono, colour=colour, halo=halo)

    def area(self, path: str, role: Role, outline: float = 0) -> None:
        """The inside of an SVG path (many rectangles, say) in a role's colour and hatch."""
        stroke: dict[str, Any] = {"stroke": palette.INK, "stroke_width": outline} if outline else {}
        self._hatches.add(role.hatch)
        self._add("path", d=path, fill=role.colour, **stroke)
        self._add("path", d=path, fill=f"url(#{HATCHES[role.hatch][0]})")

    def shape(self, path: str, fill: str) -> None:
        """The inside of an SVG path (many rectangles, say) in a plain colour, with an outline."""
        self._add("path", d=path, fill=fill, stroke=palette.LINE, stroke_width=1.2)

    def labels(self, texts: Iterable[tuple[float, float, str]], size: float = 12, halo: bool = True) -> None:
        """Many short texts, each in the middle of its (x, base line). ``halo`` puts white around them."""
        look = f'font-size="{number(size)}" text-anchor="middle"'
        inside = "".join(f'<text x="{number(x)}" y="{number(y)}" {look}>{escape(text)}</text>' for x, y, text in texts)
        if inside:
            around = {"stroke": "#FFFFFF", "stroke_width": 3, "stroke_linejoin": "round", "paint_order": "stroke"}
            self._add("g", inside, fill=palette.INK, font_family=SANS, **(around if halo else {}))

    def paragraph(
        self,
        x: float,
        y: float,
        text: str,
        width: float,
        size: float = 13,
        anchor: str = "start",
        colour: str = palette.INK,
        bold: bool = False,
    ) -> float:
        """Text broken into lines of at most ``width`` pixels. Returns the base line that would come next."""
        for line in wrap(text, width, size, bold):
            self.text(x, y, line, size, anchor, bold=bold, colour=colour)
            y += size * 1.35
        return y

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str = palette.INK,
        width: float = 1.6,
        dash: str | None = None,
        arrow: str = "",
    ) -> None:
        """A line through points. ``arrow``: "end", "start" or "both" puts a head there."""
        points = list(points)
        if arrow in ("end", "both"):
            points[-1] = self._head(points[-2], points[-1], colour, width)
        if arrow in ("start", "both"):
            points[0] = self._head(points[1], points[0], colour, width)
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._add("polyline", points=path, fill="none", stroke=colour, stroke_width=width, stroke_dasharray=dash)

    def _head(self, start: tuple[float, float], tip: tuple[float, float], colour: str, width: float) -> tuple:
        """An arrow head at ``tip``; returns where the line should stop."""
        length = 6 + 2.5 * width
        dx, dy = tip[0] - start[0], tip[1] - start[1]
        norm = max((dx * dx + dy * dy) ** 0.5, 1e-9)
        dx, dy = dx / norm, dy / norm
        bx, by = tip[0] - dx * length, tip[1] - dy * length
        side = length * 0.42
        corners = [tip, (bx - dy * side, by + dx * side), (bx + dy * side, by - dx * side)]
        self._add("polygon", points=" ".join(f"{number(x)},{number(y)}" for x, y in corners), fill=colour)
        return tip[0] - dx * length * 0.8, tip[1] - dy * length * 0.8

    def dot(self, x: float, y: float, radius: float = 4, colour: str = palette.INK) -> None:
        """A filled circle."""
        self._add("circle", cx=x, cy=y, r=radius, fill=colour)

    def svg(self) -> str:
        """The whole picture as SVG text."""
        patterns = "".join(
            f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">{tile}</pattern>\n'
            for hatch, (name, tile) in HATCHES.items()
            if hatch in self._hatches
        )
        width, height = number(self.width), number(self.height)
        shapes = "\n".join(self._shapes).replace("xml--space", "xml:space")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label={quoteattr(self.alt)}>\n'
            f"<title>{escape(self.title)}</title>\n<desc>{escape(self.alt)}</desc>\n"
            + (f"<defs>\n{patterns}</defs>\n" if patterns else "")
            + f"{shapes}\n</svg>\n"
        )

    def picture(self) -> Picture:
        """The picture with its text alternative."""
        return from_svg(self.svg(), self.alt, round(self.width))
