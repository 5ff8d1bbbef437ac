"""What every exercise asks for, whatever it is about: from the records of all ranks, the clauses that are broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from checks.contracts.contract import Amount, Broken, Case, Contract, Rules

Record = dict[str, Any]
_ASPECTS = {
    "training": "is in another mode (train or eval) than before, and whoever called this goes on with it",
    "requires_grad": "has another `requires_grad` than before: it was frozen, or thawed",
    "is": "was replaced by a new object: optimizers, tied layers and hooks still hold the old one. Change it in place",
    "memory": "lies in other memory than before: ties and views of it are cut. Change it in place, with copy_",
    "value": "has other numbers than before, and they had to stay",
    "grad": "has another `.grad` than before: a gradient was cleared, or made",
    "device": "has moved to another device",
    "dtype": "has another type than before",
    "shape": "has another shape than before",
    "class": "has another forward, or its class has other attributes than before",
    "attributes": "has attributes that were added or replaced: others see what is kept there, and it grows old",
    "added": "has a hook more than before, which was left behind",
    "removed": "has lost hooks that others had put there",
}
_EVENTS = {
    "ready": "uses {}, which does the exercise: write it yourself, that is the point",
    "course": "uses {}: the course's own code is no answer, write it yourself",
    "looks": "looks into the check with {}",
    "starts": "starts {}, and needs none",
    "writes": "writes a file, …{}, and needs none",
}
# Bytes that a message needs beside its numbers, and what the ranks' own words to each other need.
_AROUND_A_CALL, _AROUND_A_STEP = 4_000, 16_000
_GAPS = "a tensor with gaps in memory (a column, say), of which gloo takes other numbers: give it a contiguous copy"
_GRAPH = (
    "requires a gradient itself, or hangs on a graph of autograd, which stays in memory with it: detach it, or compute "
    "it under torch.no_grad()"
)
_FUNCTIONS = ("", "")  # what the answer's functions hold, whatever they were called with


def clauses(contract: Contract, case: Case, world: Sequence[dict[str, Any]]) -> Iterator[Broken]:
    """The broken clauses of all calls on all ranks."""
    for rank, one in enumerate(world):
        before: dict[tuple[str, str], int] = {}
        for number, record in enumerate(one["records"]):
            where = {"rank": rank, "call": number}
            rules = contract.rules[record["rules"]]
            for clause, sentence, *figures in _of_record(rules, case, rank, one["facts"], record, before):
                told = sentence.replace("{who}", record["rules"].rstrip(","))
                yield Broken(clause, told if "{who}" in sentence else f"{record['rules']} {told}", *figures, **where)
            if "raised" in record:
                yield Broken("raised:", record["raised"], **where)
        stopped, rules = one["stopped"], contract.rules[one["records"][-1]["rules"]] if one["records"] else Rules()
        # (Where the scene could make no use of what a rank has got, the judging says so, behind what is the cause.)
        if stopped and stopped["clause"] != "use" and not _matches(f"wire:{stopped['clause']}", rules.allows):
            where = {"rank": None if stopped["everywhere"] else rank, "call": len(one["records"]) - 1}
            yield Broken(f"wire:{stopped['clause']}", stopped["sentence"], **where)
    for number, records in enumerate(zip(*(one["records"] for one in world), strict=False)):
        said = [[str(call["name"]) for call in record.get("calls", ())] for record in records]
        if (
            contract.rules[records[0]["rules"]].same_calls
            and all(r["finished"] for r in records)
            and said != said[:1] * len(said)
        ):
            yield Broken("wire:disagree", "the ranks do not call the same collectives", call=number)


def _of_record(
    rules: Rules, case: Case, rank: int, facts: dict[str, Any], record: Record, before: dict[tuple[str, str], int]
) -> Iterator[tuple[Any, ...]]:
    for kind, what in dict.fromkeys(map(tuple, record.get("events", ()))):
        if _matches(f"{kind}:{what}", rules.allows):
            continue
        yield f"{kind}:{what}", _EVENTS[kind].format(what)
    for name in dict.fromkeys(call["name"] for call in record.get("calls", ()) if call["gaps"]):
        yield f"wire:gaps {name}", f"gives {name} {_GAPS}"
    if rules.wire is not None:
        yield from _strangers(rules.wire(case, rank, facts), record)
    yield from _changes(rules, record)
    if not record["finished"]:
        return
    for module in sorted(record["course"]):
        if _matches(f"course:{module}", rules.allows):
            continue
        yield f"course:{module}", _EVENTS["course"].format(module)
    if rules.wire is not None:
        yield from _amounts(rules.wire(case, rank, facts), rules.surplus(facts), record)
    key, holds = (record["rules"], record["of"]), record["holds"]
    latest = before.get(_FUNCTIONS, 0) if not record["made"] else 0  # (a call on something else may add to it)
    if holds > max(latest, before.get(key, holds)):
        yield "keeps:", "keeps more tensors after every call, in a global or an attribute", holds, before[key]
    before |= {key: holds} if record["made"] else {key: holds, _FUNCTIONS: holds}


def _changes(rules: Rules, record: Record) -> Iterator[tuple[Any, ...]]:
    for path, was, now in record["changes"]:
        if _matches(path, rules.changes) and not _matches(path, rules.keeps):
            continue
        thing, _, aspect = path.rpartition(".")
        words = _ASPECTS.get(aspect, f"is not as before ({aspect.strip('_')})")
        words = _GRAPH if path.endswith(".grad.requires_grad") else words
        figures = (now, was) if aspect in ("training", "requires_grad", "grad", "device", "dtype", "shape") else ()
        yield f"state:{path}", f"after {{who}}, `{thing.removesuffix('.hooks')}` {words}", *figures
    for name, was, now in record["around"]:
        if not _matches(f"around.{name}", rules.changes):
            figures = (now, was) if was or now else ()
            kind = "looks" if name.startswith("the functions of") else "around"
            yield f"{kind}:{name}", f"leaves {name} other than before: put back what you change", *figures


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _strangers(allowed: Mapping[str, Amount], record: Record) -> Iterator[tuple[Any, ...]]:
    """Kinds of communication that the contract does not know."""
    may = (
        f"{' and '.join(f'dist.{name}' for name in allowed)} is all that it may call" if allowed else "may call nothing"
    )
    for call in record.get("calls", ()):
        if call["name"] not in (*allowed, "new_group"):  # (a group that is new is seen around the call)
            name = call["name"] if call["name"].startswith("store") else f"dist.{call['name']}"
            yield f"wire:other {call['name']}", f"calls {name}, and {may}"
            return


def _amounts(allowed: Mapping[str, Amount], surplus: Mapping[str, int], record: Record) -> Iterator[tuple[Any, ...]]:
    explained = _AROUND_A_STEP
    for name, amount in allowed.items():
        calls = [call for call in record["calls"] if call["name"] == name]
        moved = sum(call["bytes"] for call in calls)
        explained += sum(_AROUND_A_CALL + 6 * call["bytes"] for call in calls)
        yield from _one_kind(name, amount, calls, moved, surplus)
    if record["hidden"]:
        sentence = "communicates past torch.distributed's functions, where nobody can follow"
        yield "wire:hidden", sentence, f"{record['hidden']} collectives more than were called"
    elif record["sent"] > explained and not any(call["name"] not in allowed for call in record["calls"]):
        sentence = "sends more over the network than its collectives explain"
        yield "wire:sockets", sentence, f"{record['sent']:,} bytes", f"at most {explained:,}"


def _one_kind(
    name: str, amount: Amount, calls: list[Record], moved: int, surplus: Mapping[str, int]
) -> Iterator[tuple[Any, ...]]:
    least = amount.bytes if amount.least is None else amount.least
    need = f"at most {amount.calls} calls, {amount.bytes:,} bytes"
    if least and not calls:
        yield f"wire:none {name}", f"calls no {name} at all, so every rank keeps its own", 0, need
        return
    if not least <= moved <= amount.bytes or len(calls) > amount.calls:
        kind = "more" if moved > amount.bytes else "fewer" if moved < least else "pieces"
        words = {
            "more": f"sends more than it has to with {name}",
            "fewer": f"sends less than it has to with {name}: something never travels, or in a smaller type",
            "pieces": f"sends the right bytes with {name}, in more pieces than there are tensors",
        }[kind]
        if why := next((why for why, extra in surplus.items() if extra and moved - amount.bytes == extra), ""):
            kind, words = f"{kind} {why}", f"{words}: {why}"
        yield f"wire:{kind} {name}", words, f"{len(calls)} calls, {moved:,} bytes", need
    if lost := sum(call["waited"] is None for call in calls):
        sentence = f"never waits for {lost} of {len(calls)} calls of {name}: call wait() on what each of them returns"
        yield f"wire:unwaited {name}", sentence
    if changed := sum(call["changed"] for call in calls):
        sentence = f"changes a tensor while {name} is still using it: change it before the call, or after wait()"
        yield f"wire:changed {name}", sentence, f"{changed} of {len(calls)} calls"
    if amount.peer is not None and any(call["peer"] != amount.peer for call in calls):
        peers = sorted({str(call["peer"]) for call in calls})
        yield f"wire:peer {name}", f"calls {name} with another rank", ", ".join(peers), amount.peer
    if not amount.some and not all(call["whole"] for call in calls):
        yield f"wire:group {name}", f"calls {name} among some of the ranks only: all have to take part"
    if not all(call["main"] for call in calls):
        yield f"wire:thread {name}", f"calls {name} in another thread, so the ranks' order is left to luck"
