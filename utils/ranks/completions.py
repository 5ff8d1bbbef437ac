"""Names and attributes that live in a rank, for completion while the reader types."""

from __future__ import annotations

import time
from typing import Any

from utils.ranks.wire import Channel, wait_for

PATIENCE = 0.5  # seconds: whoever types does not wait longer


def ask_for_completions(channel: Channel, ask: int, text: str) -> list[str]:
    """In the notebook: what a rank knows that begins with ``text``; empty if it does not answer at once.

    Args:
        ask: a number by which the answer is told from those that came too late.
    """
    try:
        channel.send({"do": "complete", "text": text, "ask": ask})
        end = time.monotonic() + PATIENCE
        while (left := end - time.monotonic()) > 0 and wait_for([channel], left):
            for message, _ in channel.take():
                if message["event"] == "completions" and message["ask"] == ask:
                    return list(message["matches"])
            if channel.eof:
                break
    except OSError:
        pass  # it is gone
    return []


def completions(text: str, namespace: dict[str, Any]) -> list[str]:
    """Names and attributes in this rank that begin with ``text``."""
    found: list[str] = []
    try:
        import rlcompleter

        completer = rlcompleter.Completer(namespace)
        while len(found) < 300 and (match := completer.complete(text, len(found))) is not None:
            found.append(match)
    except Exception:
        pass  # a property that raises: no completions
    return [match.rstrip("( ") for match in found]
