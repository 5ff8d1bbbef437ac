"""What this interpreter does with threads: its GIL, immortal objects, lost updates, threads and subinterpreters.

Needs nothing but the standard library, so any interpreter can run it: ``python3.14t scripts/gil_facts.py``. It prints
one line of JSON:

- ``version``; ``gil``: is it on? ``immortal``: does a new reference to None leave None's count alone?
- ``lost``: for three ways to add 1 in two threads, how many rounds it took until an update was lost (``rounds``; the
  bound if none was), and how many of that round's additions were lost (``lost``, a share).
- ``threads``, ``subinterpreters``: how long two at once take, in units of one alone: 1 is perfect, 2 is "they take
  turns". The best of several tries. null: this interpreter has no such thing.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

WORK = "for _ in range({}): pass"


def main() -> None:
    quick = "--quick" in sys.argv
    loops, tries = (100_000, 2) if quick else (500_000, 21)
    facts = {
        "version": sys.version.split()[0],
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "immortal": immortal(),
        "lost": {name: lost(name, rounds=50 if quick else 100) for name in ("n += 1", "n += one()", "n += int(1)")},
        "threads": ratio(lambda: exec(compile(f"def f():\n {WORK.format(loops)}\nf()", "loop", "exec"), {}), tries),
        "subinterpreters": subinterpreters(loops, tries),
    }
    print(json.dumps(facts))


def immortal() -> bool:
    """A thousand new references to None: has its count changed?"""
    before = sys.getrefcount(None)
    many = [None] * 1000
    return sys.getrefcount(None) - before < len(many) // 2


def lost(statement: str, rounds: int, additions: int = 50_000) -> dict[str, float]:
    """Two threads add 1, many times, in rounds, until an update is lost or the bound is reached."""
    code = f"def add():\n global n\n gate.wait()\n for _ in range({additions}):\n  {statement}\n\ndef one(): return 1\n"
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for done in range(1, rounds + 1):
            space: dict = {"n": 0, "gate": threading.Barrier(2)}
            exec(code, space)
            both = [threading.Thread(target=space["add"]) for _ in range(2)]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
            if space["n"] < 2 * additions:
                return {"rounds": done, "lost": 1 - space["n"] / (2 * additions)}
        return {"rounds": rounds, "lost": 0.0}
    finally:
        sys.setswitchinterval(before)


def ratio(work: Callable[[], None], tries: int, also: Callable[[], None] | None = None) -> float:
    """Seconds of two threads at once in units of one alone, the best of several tries each."""

    def seconds(*jobs: Callable[[], None]) -> float:
        gate = threading.Barrier(len(jobs) + 1)

        def start(job: Callable[[], None]) -> None:
            gate.wait()
            job()

        threads = [threading.Thread(target=start, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        begin = time.perf_counter()
        gate.wait()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    found = [(seconds(work), seconds(work, also or work)) for _ in range(tries)]
    return min(both for _, both in found) / min(alone for alone, _ in found)


def subinterpreters(loops: int, tries: int) -> float | None:
    """The same with one subinterpreter for each thread."""
    code = f"def f():\n    {WORK.format(loops)}\nf()"
    try:
        from concurrent import interpreters  # since 3.14

        first, second = interpreters.create(), interpreters.create()
        return ratio(lambda: first.exec(code), tries, lambda: second.exec(code))
    except ImportError:
        pass
    for name in ("_interpreters", "_xxsubinterpreters"):  # 3.13; 3.8 to 3.12
        try:
            module = __import__(name)
            one, two = module.create(), module.create()
            return ratio(lambda: module.run_string(one, code), tries, lambda: module.run_string(two, code))  # noqa: B023
        except ImportError:
            continue
    return None


if __name__ == "__main__":
    main()
