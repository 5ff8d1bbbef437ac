"""Lines of torch's logs without what differs from run to run: when, where in torch's source, which port."""

from __future__ import annotations

import re

_STACK = re.compile(r"^(frame #|Exception raised from|<omitting python frames>|\s*$)")
# What torch's log lines hold beside what they say: where in torch's source, when, and which process.
_NOISE = (
    (re.compile(r"^\[rank\d+\]:"), ""),
    (re.compile(r"^\[[A-Z]\d{4} [\d:.]+ \w+\.\w+:\d+\] "), ""),
    (re.compile(r"\[?/[\w/.-]+/gloo/[\w/]+\.(?:cc|h):\d+\]? ?"), ""),
    (re.compile(r"\[c10d(?: - debug)?\] "), ""),
    (re.compile(r"(\[[\w.:]+\]):\d{1,5}(?:\$\d+)?\b"), r"\1:PORT"),
    (re.compile(r"([\w.-]+):\d{4,5}\b"), r"\1:PORT"),
    (re.compile(r"\((\S+), \d{4,5}\)"), r"(\1, PORT)"),
    (re.compile(r"\bport(:| =) \d{4,5}"), r"port\1 PORT"),
    (re.compile(r"\bfd=\d+"), "fd=N"),
    (re.compile(r", TensorDeviceTypes=TensorOptions\(.*?\(nullopt\)\)\)"), ")"),
    (re.compile(r"(\.)(Collectives differ)"), r"\1 \2"),
    (re.compile(r"(?<=\w)vs (?=\w)"), " vs "),
    (re.compile(r" {2,}"), " "),
)


def plain(line: str) -> str:
    """A line of torch's log or of an error, without when and where in torch's source, and without ports."""
    for pattern, instead in _NOISE:
        line = pattern.sub(instead, line)
    return line.strip()


def is_stack(line: str) -> bool:
    """Whether the line belongs to a stack of C++ frames, which says nothing about the program."""
    return bool(_STACK.match(line))
