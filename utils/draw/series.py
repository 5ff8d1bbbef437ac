"""Interactive figures that need no kernel: every picture is drawn beforehand, and sliders choose which one is seen.

What is stored is one piece of HTML. Where scripts may run (a web page, a notebook that one has run or trusts) it has
a slider for each choice. Elsewhere (a notebook that nobody has trusted yet, GitHub, paper) the first picture is seen,
and the others are in a fold below it, each under its own words.
"""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from utils.draw.picture import Picture

# Runs where the HTML is; it finds every series on the page that has no sliders yet.
_SCRIPT = """
for (const figure of document.querySelectorAll('.picture-series[data-choices]:not([data-ready])')) {
  figure.dataset.ready = 'yes';
  const choices = JSON.parse(figure.dataset.choices);
  const pictures = [...figure.querySelectorAll('.picture-of-series')];
  figure.querySelector('details').replaceWith(...pictures.slice(1));
  pictures.forEach(picture => picture.firstElementChild.remove());
  const place = choices.map(choice => choice.start);
  const bar = document.createElement('div');
  const show = () => {
    const number = place.reduce((sum, at, i) => sum * choices[i].values.length + at, 0);
    pictures.forEach(picture => { picture.hidden = Number(picture.dataset.number) !== number; });
  };
  choices.forEach((choice, i) => {
    const label = document.createElement('label');
    label.style.cssText = 'display:flex;gap:.7em;align-items:center;max-width:34em;margin:.2em 0';
    const name = document.createElement('span');
    name.textContent = choice.name;
    const slider = document.createElement('input');
    Object.assign(slider, {type: 'range', min: 0, max: choice.values.length - 1, step: 1});
    slider.value = choice.start;
    slider.dataset.lmSuppressShortcuts = 'true';  // JupyterLab leaves it the arrow keys
    slider.style.cssText = 'flex:1;min-width:6em';
    const value = document.createElement('output');
    value.style.minWidth = '4em';
    const say = () => {
      value.textContent = choice.values[place[i]];
      slider.setAttribute('aria-valuetext', choice.values[place[i]]);
    };
    slider.addEventListener('input', () => { place[i] = Number(slider.value); say(); show(); });
    label.append(name, slider, value);
    bar.append(label);
    say();
  });
  figure.prepend(bar);
  show();
}
"""


@dataclass(frozen=True, repr=False)
class Series:
    """Pictures to choose from. Shows itself as the last line of a cell.

    Args:
        choices: the name of each slider, and what it can be set to, in words.
        pictures: one for each combination, those of the last slider next to each other.
        start: the position of each slider in the beginning.
    """

    choices: dict[str, tuple[str, ...]]
    pictures: tuple[Picture, ...]
    start: tuple[int, ...]

    def __repr__(self) -> str:
        names = "; ".join(f"{name}: {', '.join(words)}" for name, words in self.choices.items())
        return f"{len(self.pictures)} pictures to choose from ({names}). The first one: {self._parts()[0][2].alt}"

    def _parts(self) -> list[tuple[int, str, Picture]]:
        """Number, words and picture of each; the one that is seen in the beginning comes first."""
        parts = []
        for number, words in enumerate(itertools.product(*self.choices.values())):
            said = ", ".join(f"{name}: {word}" for name, word in zip(self.choices, words, strict=True))
            parts.append((number, said, self.pictures[number]))
        places = itertools.product(*(range(len(words)) for words in self.choices.values()))
        first = list(places).index(self.start)
        return [parts[first], *parts[:first], *parts[first + 1 :]]

    @property
    def html(self) -> str:
        """All pictures, what the sliders say, and the script that makes the sliders."""
        sliders = [
            {"name": name, "values": words, "start": at}
            for (name, words), at in zip(self.choices.items(), self.start, strict=True)
        ]
        first, *others = (
            f'<div class="picture-of-series" data-number="{number}"><p>{html.escape(said)}</p>{picture.html}</div>'
            for number, said, picture in self._parts()
        )
        fold = f"<details><summary>the other {len(others)} pictures</summary>{''.join(others)}</details>"
        data = html.escape(json.dumps(sliders, ensure_ascii=False))
        return f'<div class="picture-series" data-choices="{data}">{first}{fold}<script>{_SCRIPT}</script></div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html}


def series(
    function: Callable[..., Picture], start: Mapping[str, Any] | None = None, **choices: Iterable[Any]
) -> Series:
    """Draw every picture that sliders can choose, as ``ipywidgets.interact`` would while a kernel lives.

    Args:
        function: called with one value of each choice, by name; returns a picture.
        start: the value of each choice in the beginning; the first one where it says nothing.
        choices: for each slider its values, or a dict from the words that are shown to the values.

    Raises:
        ValueError: there is nothing to choose, or ``start`` has a value that is no choice.
    """
    values = {
        name: dict(one) if isinstance(one, Mapping) else {str(v): v for v in one} for name, one in choices.items()
    }
    if not values or not all(values.values()):
        raise ValueError("a series needs at least one choice, and each choice a value: series(draw_it, step=range(8))")
    places = []
    for name, one in values.items():
        begin = (start or {}).get(name, next(iter(one.values())))
        if begin not in one.values():
            raise ValueError(f"start has {name}={begin!r}, which is none of {', '.join(one)}")
        places.append(list(one.values()).index(begin))
    combinations = itertools.product(*(one.values() for one in values.values()))
    pictures = tuple(function(**dict(zip(values, chosen, strict=True))) for chosen in combinations)
    words = {name.replace("_", " "): tuple(one) for name, one in values.items()}
    return Series(words, pictures, tuple(places))
