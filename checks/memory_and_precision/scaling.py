"""Exercise 3: the class ``LossScaler(scale, growth, backoff, interval)``, beside a model of what has to happen.

The loss is a sum of coefficients times parameters. A coefficient of 2¹²⁰ makes a scaled gradient infinite in fp32, as
65,504 does in fp16, until the scale is small enough; one that is not a number does at any scale.
"""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks import plain
from checks.contracts import Broken, Case, Contract, Facts, Rules, compare

RATE = 0.25
NAN = "nan"
OTHER = {"scale": 2.0, "growth": 3.0, "backoff": 0.1, "interval": 99}  # of the scaler that loads a state


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for number, (interval, clip, resumed) in enumerate(
        ((3, False, 0), (2, True, 0), (4, False, 1), (rng.randint(2, 5), True, 1), (1, False, 0))
    ):
        growth, backoff = (2.0, 0.5) if number in (0, 2) else (rng.choice((2.0, 3.0, 4.0)), rng.choice((0.5, 0.25)))
        first = 2.0 ** rng.randint(8, 14) * (3 if number == 4 else 1)  # (three's powers are exact in float32 up to 15)
        steps = []
        for step in range(14):
            kind = "normal"
            if (step in (0, 1) and number == 0) or rng.random() < 0.25:
                kind = rng.choice(("huge", "huge", NAN))
            steps.append(kind)
        steps[5] = "huge"  # in the middle of a good time
        if number == 2:  # a scale may be smaller than 1
            first, steps[3:5] = 1.5, [NAN, NAN]
        case: Case = {"ranks": 1, "scale": first, "growth": growth, "backoff": backoff}
        case |= {
            "type": "float64" if number == 3 else "float32",
            "interval": interval,
            "clipping": clip,
            "resumed after": resumed and rng.randint(6, 8),
        }
        cases.append(case | {"steps": steps, "seed": rng.getrandbits(30)})
    return cases


class Plain:
    """An optimizer, as far as a scaler needs one: gradient descent, and it counts."""

    def __init__(self, parameters: list[Any]) -> None:
        self.param_groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        self.steps = 0

    def step(self) -> None:
        import torch

        self.steps += 1
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        one.sub_(one.grad, alpha=RATE)


def _parameters(seed: int, kind: str = "float32") -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 4), (5,), (2, 2), (), (4,))
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [one.to(getattr(torch, kind)).requires_grad_() for one in drawn]


def _coefficients(case: Case, number: int) -> list[Any]:
    """For each parameter but the last, which the loss does not use."""
    import torch

    generator = torch.Generator().manual_seed(case["seed"] + number)
    dtype, huge = getattr(torch, case["type"]), 2.0**117 if case["type"] == "float32" else 2.0**1013
    made = [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((3, 4), (5,), (2, 2), ())]
    kind = case["steps"][number]
    if kind != "normal":
        where = (case["seed"] + number) % 4
        made[where].view(-1)[-1] = math.nan if kind == NAN else (-1) ** number * huge
    return made


def _take_a_step(watch: Any, scaler: Any) -> None:
    """A good one, of a model that nobody looks at."""
    parameters = _parameters(1)
    optimizer = Plain(parameters)
    with watch.step("scale", scaler):
        scaled = scaler.scale(sum(one.sum() for one in parameters))
    scaled.backward()
    with watch.step("step", scaler):
        scaler.step(optimizer)
    with watch.step("update", scaler):
        scaler.update()


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    parameters = _parameters(case["seed"], case["type"])
    optimizer = Plain(parameters)
    settings = {name: case[name] for name in ("scale", "growth", "backoff", "interval")}
    scaler, other = watch.call("LossScaler", **settings), watch.call("LossScaler", **OTHER)
    facts["steps"], given = [], None
    for number in range(len(case["steps"])):
        if number and number == case["resumed after"]:
            with watch.step("state_dict", scaler):
                state = scaler.state_dict()
            facts["state"] = dict(state) if _is_plain(state) else f"a {type(state).__name__}"  # (as it is now)
            with watch.step("state_dict", scaler):
                again = scaler.state_dict()
            facts["again"] = dict(again) if _is_plain(again) else None
            kept = copy.deepcopy(state)
            _take_a_step(watch, scaler)  # which must not reach into the state that it gave away
            facts["alias"] = state != kept
            scaler = watch.call("LossScaler", **OTHER)
            with watch.step("load_state_dict", scaler, state=state):
                scaler.load_state_dict(state)
            given = state, copy.deepcopy(state)
        one: Facts = {"before": [each.detach().clone() for each in parameters], "optimizer": optimizer.steps}
        facts["steps"].append(one)
        for each in parameters:
            each.grad = None
        loss = sum((c * p).sum() for c, p in zip(_coefficients(case, number), parameters, strict=False))
        one["loss"] = loss.detach().clone()
        with watch.step("scale", scaler, loss=loss):
            scaled = scaler.scale(loss)
        one["scaled"] = scaled.detach().clone() if isinstance(scaled, torch.Tensor) else f"a {type(scaled).__name__}"
        if not isinstance(scaled, torch.Tensor):
            return
        scaled.backward()
        if case["clipping"]:
            with watch.step("unscale", scaler, parameters=parameters, optimizer=optimizer):
                scaler.unscale(optimizer)
            one["unscaled"] = [None if each.grad is None else each.grad.clone() for each in parameters]
            with torch.no_grad():
                norm = torch.stack([each.grad.norm() for each in parameters if each.grad is not None]).norm()
                for each in parameters:
                    if each.grad is not None:
                        each.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        if number % 3 == 1:
            _take_a_step(watch, other)  # another model's, in the middle of this one's
        with watch.step("step", scaler, parameters=parameters, optimizer=optimizer):
            stepped = scaler.step(optimizer)
        one["stepped"] = stepped if isinstance(stepped, bool) else f"a {type(stepped).__name__}"
        with watch.step("update", scaler, parameters=parameters, optimizer=optimizer):
            scaler.update()
        one["times"] = optimizer.steps - one["optimizer"]
        one["after"] = [each.detach().clone() for each in parameters]
    facts["reaches back"] = given is not None and given[0] != given[1]


def _is_plain(state: Any) -> bool:
    values = state.values() if isinstance(state, dict) else [None]
    return all(isinstance(one, bool | str) or plain.number(one) is not None for one in values)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    facts, scale, good = world[0], float(case["scale"]), 0
    if "state" in facts and not isinstance(facts["state"], dict):
        words = "state_dict returns a dict of plain numbers, which a file can hold"
        yield Broken("returns:state", words, facts["state"])
        return
    if "state" in facts and facts["again"] != facts["state"]:
        yield Broken("returns:again", "state_dict says something else when it is asked a second time")
    if facts.get("alias"):
        words = "the scaler's next step changes the state that it has given away: state_dict returns a dict of its own"
        yield Broken("returns:alias", words)
    if facts.get("reaches back"):
        words = "the state that load_state_dict has got is changed by later steps: another scaler may load it too"
        yield Broken("returns:alias", words)
    for number, one in enumerate(facts["steps"]):
        if "scaled" not in one:
            return
        loaded = case["resumed after"] and number >= case["resumed after"]
        where = f"in step {number + 1}{', after the state was loaded,' if loaded else ''}"
        if isinstance(one["scaled"], str):
            yield Broken("returns:scale", "scale returns the loss times the scale, as a tensor", one["scaled"])
            return
        broken = list(_scaled(one, scale, where, functools.partial(_why, case, facts, number, scale)))
        yield from broken
        if broken or "after" not in one:
            return
        gradients = [scale * c for c in _coefficients(case, number)]
        finite = all(bool(g.isfinite().all()) for g in gradients)
        broken = list(_stepped(case, one, finite, _coefficients(case, number), where))
        yield from broken
        if broken:
            return
        good = good + 1 if finite else 0
        if not finite:
            scale *= case["backoff"]
        elif good == case["interval"]:
            scale, good = scale * case["growth"], 0


def _why(case: Case, facts: Facts, number: int, scale: float, factor: float) -> str:
    """The likely mistake behind another scale than the right one."""
    if factor == 1.0 and all(bool(one["loss"].isnan()) for one in facts["steps"][:number]):
        return "the loss is not scaled at all"
    if number == 0:
        return ""
    if number == case["resumed after"] and factor == OTHER["scale"]:
        return "the scale of the saved state is not used"
    if facts["steps"][number - 1].get("times") == 0:
        return "after a skipped step the scale has to be multiplied by backoff, once"
    if factor > scale:
        return "it has grown too early: good steps in a row count, from zero after each skip and after each growth"
    return "it has not grown after that many good steps in a row"


def _scaled(one: Facts, scale: float, where: str, why: Callable[[float], str]) -> Iterator[Broken]:
    import torch

    wanted, got = one["loss"] * scale, one["scaled"]
    if torch.equal(got, wanted) or (bool(wanted.isnan()) and bool(got.isnan())):
        return
    factor = float(got.double() / one["loss"].double()) if got.numel() == 1 else math.nan
    words = f"{where} the scale is another one than the steps before it ask for: {why(factor)}".removesuffix(": ")
    yield Broken("value:0 scale", words, f"{factor:.6g}", f"{scale:.6g}")


def _stepped(case: Case, one: Facts, finite: bool, coefficients: list[Any], where: str) -> Iterator[Broken]:
    import torch

    if case["clipping"] and finite:
        for got, wanted in zip(one["unscaled"], coefficients, strict=False):
            words = f"{where}, after unscale, a gradient"
            yield from compare("value:1 unscaled", words, got, [wanted])
    if one["times"] != int(finite):
        words = f"{where} the gradients are {'' if finite else 'not '}all finite, so the optimizer takes "
        words += "one step" if finite else "no step"
        yield Broken(f"value:2 {'skipped' if finite else 'taken'}", words, one["times"], int(finite))
    if one["stepped"] is not finite:
        words = f"{where} step returns whether the optimizer took its step, True or False"
        yield Broken("value:4 returned", words, str(one["stepped"]), str(finite))
    if not finite:
        if not all(torch.equal(a, b) for a, b in zip(one["before"], one["after"], strict=True)):
            yield Broken("value:3 changed", f"{where} parameters change, though the step is skipped")
        return
    norm = torch.stack([c.norm() for c in coefficients]).norm()
    factor = float((1.0 / (norm + 1e-6)).clamp(max=1.0)) if case["clipping"] else 1.0
    for before, after, c in zip(one["before"], one["after"], coefficients, strict=False):
        words = f"{where} a parameter"
        yield from compare("value:3 parameter", words, after, [before, -RATE * factor * c], steps=8)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    steps = [one for _, world in played for one in world[0]["steps"]]
    return {
        "steps": len(steps),
        "skipped": sum(one["times"] == 0 for one in steps),
        "resumed": sum(bool(case["resumed after"]) for case, _ in played),
    }


GRADIENTS = ("parameters*.grad", "parameters*.grad.*", "optimizer*.grad", "optimizer*.grad.*")
CONTRACT = Contract(
    name="memory_and_precision.scaler",
    rules={
        "LossScaler": Rules(),
        "scale": Rules(),
        "unscale": Rules(changes=GRADIENTS),
        "step": Rules(changes=(*GRADIENTS, "parameters*.value", "optimizer*.value", "optimizer.steps")),
        "update": Rules(),
        "state_dict": Rules(),
        "load_state_dict": Rules(),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("returns:*", "{}"),
        ("value:1*", "{}"),
        ("value:2 taken", "{}: infinite gradients, or those that are no numbers, would destroy the weights"),
        ("value:2*", "{}"),
        ("value:0*", "{}"),
        ("value:3*", "{}: is each gradient divided by the scale, and once only?"),
        ("value:4*", "{}"),
        ("state:*", "{}"),
        ("around:*", "{}"),
    ),
    refused=(
        "torch.amp.grad_scaler.GradScaler.__init__",
        "torch.amp.grad_scaler.GradScaler.unscale_",
    ),
    figures=figures,
)
