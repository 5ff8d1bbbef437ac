"""The vocabulary of the checks: not started, wrong (with a sentence), right (with figures), not judged (and why)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from checks.engine.plain import shorten

NOT_STARTED, WRONG, RIGHT, HANDED_IN, NOT_JUDGED = "not started", "wrong", "right", "handed in", "not judged"
SIGNS = {NOT_STARTED: "○", WRONG: "✗", RIGHT: "✓", HANDED_IN: "→", NOT_JUDGED: "?"}
# Okabe-Ito; the sign and the word carry the meaning, the colour only helps.
COLOURS = {NOT_STARTED: "#666666", WRONG: "#D55E00", RIGHT: "#009E73", HANDED_IN: "#0072B2", NOT_JUDGED: "#666666"}
_LONGEST = {"text": 1_000, "details": 10_000}  # characters, whatever an answer puts into them
_MISSING: Any = object()


class NotStarted(Exception):
    """The learner's function still raises NotImplementedError."""

    @property
    def record(self) -> dict[str, str]:
        return {"kind": "not started", "sentence": "", "figures": "", "details": ""}


class Wrong(Exception):
    """The answer is wrong, and this sentence names the likely mistake.

    Args:
        sentence: one sentence for the learner, plain English.
        measured: what the learner's code did.
        expected: what it should have done.
        details: more lines to show beneath, for example the table of waiting ranks.
    """

    def __init__(self, sentence: str, *, measured: Any = _MISSING, expected: Any = _MISSING, details: str = "") -> None:
        self.sentence = sentence.strip()
        self.details = details
        parts = []
        if measured is not _MISSING:
            parts.append(f"measured: {_figure(measured)}")
        if expected is not _MISSING:
            parts.append(f"expected: {_figure(expected)}")
        self.figures = "; ".join(parts)
        super().__init__(sentence)

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return f"{self.sentence} ({self.figures})" if self.figures else self.sentence

    @property
    def record(self) -> dict[str, str]:
        """As plain text, for the way from one process to another; ``raised_from`` is the way back."""
        return {"kind": "wrong", "sentence": self.sentence, "figures": self.figures, "details": self.details}


def raised_from(record: dict[str, str]) -> Wrong | NotStarted:
    """The exception that a record tells of."""
    if record["kind"] == "not started":
        return NotStarted()
    wrong = Wrong(record["sentence"], details=record.get("details", ""))
    wrong.figures = record.get("figures", "")
    return wrong


@dataclass(frozen=True)
class Verdict:
    """What a check found. True exactly when the answer is right.

    Args:
        state: "not started", "wrong", "right", or "not judged" where something that the check needs is not installed.
        text: the sentence (wrong, not judged) or the figures (right).
        details: further lines, shown beneath.
        passed: the parts of the exercise that are right although the whole is not.
        printed: what the answer has printed in the case of which the text speaks, or in the first one.
    """

    state: str
    text: str = ""
    details: str = ""
    passed: tuple[str, ...] = ()
    printed: str = ""

    def __post_init__(self) -> None:
        for name, longest in _LONGEST.items():
            if len(whole := getattr(self, name)) > longest:
                object.__setattr__(self, name, f"{whole[:longest]}… ({len(whole):,} characters)")

    def but(self, passed: Sequence[str]) -> Verdict:
        """The same, with what is right in it. Who has written a part has started."""
        if not passed or self.state == RIGHT:
            return self
        text = self.text or "the rest is not written yet"
        state = WRONG if self.state == NOT_STARTED else self.state
        end = "" if text.endswith((".", "?", ")")) else "."
        return Verdict(state, f"{text}{end} Right so far: {', '.join(passed)}.", self.details, tuple(passed))

    def __bool__(self) -> bool:
        return self.state in (RIGHT, HANDED_IN)

    def __repr__(self) -> str:
        line = f"{SIGNS[self.state]} {self.state}" + (f": {self.text}" if self.text else "")
        return "\n".join(part for part in (line, self.details, self.printed) if part)

    def _repr_html_(self) -> str:
        word = f"{SIGNS[self.state]} {self.state}"
        text = escape(f": {self.text}") if self.text else ""
        more = "".join(f"<pre>{escape(part)}</pre>" for part in (self.details, self.printed) if part)
        return f'<div><b style="color:{COLOURS[self.state]}">{word}</b>{text}{more}</div>'


def figures_text(figures: Any) -> str:
    """The figures that a check returns, as text: a dict as ``name: value`` pairs, a string as it is."""
    if figures is None:
        return ""
    if isinstance(figures, dict):
        return "; ".join(f"{name}: {_figure(value)}" for name, value in figures.items())
    return str(figures)


def _figure(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shorten(value)
