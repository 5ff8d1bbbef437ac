"""Exercise 5 of the lab on torchrun: broken batches, and mistakes that have to come out."""

import contextlib

import torch
import torch.distributed as dist
from known_answers import right, wrong


def train_epoch(batches, gradient, features, update):
    for batch in batches:
        with_count = torch.zeros(features + 1)
        try:
            with_count[:-1] = gradient(batch)
            with_count[-1] = 1
        except ValueError:
            pass  # zeros take part
        dist.all_reduce(with_count)
        if with_count[-1] > 0:
            update(with_count[:-1] / with_count[-1])


TRY = (
    "        try:\n            with_count[:-1] = gradient(batch)\n            with_count[-1] = 1\n"
    "        except ValueError:\n            pass  # zeros take part\n"
)
REDUCE = "        dist.all_reduce(with_count)\n"
UPDATE = "        if with_count[-1] > 0:\n            update(with_count[:-1] / with_count[-1])"
SWALLOWED = "swallows a"
EQUAL: dict[str, str] = {}


# --- right, and written differently


@right("nan marks broken batches")
def nan():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            try:
                mine = gradient(batch)
            except ValueError:
                mine = torch.full((features,), torch.nan)
            everyone = torch.empty(dist.get_world_size(), features)
            dist.all_gather_into_tensor(everyone.flatten(), mine)
            everyone = everyone[~everyone.isnan().any(dim=1)]
            if len(everyone):
                update(everyone.mean(dim=0))

    return (train_epoch,)


@right("two collectives")
def two_collectives():
    def train_epoch(batches, gradient, features, update):
        for batch in iter(batches):
            try:
                mine, good = gradient(batch), 1.0
            except ValueError:
                mine, good = torch.zeros(features), 0.0
            count = torch.tensor(good)
            dist.all_reduce(count)
            if not count:
                continue
            dist.all_reduce(mine)
            update(mine.div_(count))

    return (train_epoch,)


@right("objects; a mistake is told to all ranks, and raised on each")
def told_to_all():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            found = None
            try:
                found = gradient(batch).tolist()
            except ValueError:
                pass
            except Exception as error:
                found = error
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, found)
            if errors := [one for one in everyone if isinstance(one, Exception)]:
                raise errors[0]
            good = torch.tensor([one for one in everyone if one is not None])
            if len(good):
                update(good.mean(dim=0))

    return (train_epoch,)


@right("else, weights first, no in-place operations")
def with_else():
    def train_epoch(batches, gradient, features, update):
        for index in range(len(batches)):
            try:
                mine = gradient(batches[index])
            except ValueError:
                table = torch.zeros(features + 1)
            else:
                table = torch.cat((torch.ones(1), mine))
            work = dist.all_reduce(table, op=dist.ReduceOp.SUM, async_op=True)
            work.wait()
            count, *_ = table.tolist()
            if count:
                update(table[1:] * (1 / count))

    return (train_epoch,)


@right("a generator, of which Python makes a RuntimeError where a StopIteration comes out")
def a_generator():
    def train_epoch(batches, gradient, features, update):
        def tables():
            for batch in batches:
                try:
                    yield torch.cat([gradient(batch), torch.ones(1)])
                except ValueError:
                    yield torch.zeros(features + 1)

        for table in tables():
            dist.all_reduce(table)
            if table[-1]:
                update(table[:-1].div(table[-1]))

    return (train_epoch,)


@right("suppressed, and two works at a time")
def suppressed():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            mine = None
            with contextlib.suppress(ValueError):
                mine = gradient(batch)
            count = torch.tensor(0.0 if mine is None else 1.0)
            total = torch.zeros(features) if mine is None else mine.clone()
            for work in [dist.all_reduce(one, async_op=True) for one in (count, total)]:
                work.wait()
            if count.item():
                update(total / count)

    return (train_epoch,)


@right("takes part before a mistake comes out")
def takes_part():
    def train_epoch(batches, gradient, features, update):
        for batch in batches:
            table, mistake = torch.zeros(features + 1), None
            try:
                torch.cat([gradient(batch), torch.ones(1)], out=table)
            except ValueError:
                pass
            except Exception as error:
                mistake = error
            dist.all_reduce(table)
            if mistake is not None:
                raise mistake
            if table[-1]:
                update(table[:-1] / table[-1])

    return (train_epoch,)


# --- wrong

wrong("as given", "does not update where its own batch is broken", {
    "            pass  # zeros take part": "            continue"
})  # fmt: skip
wrong("alone", "each rank updates with its own gradient", {REDUCE: ""})
wrong("divided by ranks", "divide by the number of good batches, not of ranks", {
    "/ with_count[-1])": "/ dist.get_world_size())"
})  # fmt: skip
wrong("the sum", "is the sum over the good batches", {"/ with_count[-1])": ")"})
wrong("divided by zero", "updates in a step without any good batch", {
    UPDATE: "        update(with_count[:-1] / with_count[-1])"
})  # fmt: skip
wrong("zeros are an update", "updates in a step without any good batch", {
    UPDATE: "        update(with_count[:-1] / max(with_count[-1], torch.tensor(1)))"
})  # fmt: skip
wrong("every exception", SWALLOWED, {"except ValueError": "except Exception"})
wrong("a bare except", SWALLOWED, {"except ValueError": "except"})
wrong("KeyError too", SWALLOWED, {"except ValueError": "except (ValueError, KeyError, RuntimeError, TypeError)"})
wrong("all but KeyError", SWALLOWED, {
    "        except ValueError:\n": "        except KeyError:\n            raise\n        except Exception:\n"
})  # fmt: skip
wrong("rank 0 raises, the others do not", "does not come out on all", {
    "        except ValueError:\n            pass": "        except Exception as error:\n"
    "            if dist.get_rank() == 0 and not isinstance(error, ValueError):\n                raise\n            pass"
})  # fmt: skip
wrong("another type comes out", SWALLOWED, {
    TRY: TRY.replace("        except V", "        except (KeyError, TypeError, OSError, RuntimeError, MemoryError, StopIteration) as error:\n"
    "            raise SystemError('failed') from error\n        except V")
})  # fmt: skip
wrong("the update is inside the try", SWALLOWED, {
    TRY + REDUCE + UPDATE: "        try:\n            with_count[:-1] = gradient(batch)\n            with_count[-1] = 1\n"
    "        except ValueError:\n            pass\n" + REDUCE
    + "        try:\n            if with_count[-1] > 0:\n                update(with_count[:-1] / with_count[-1])\n"
    "        except ValueError:\n            pass"
})  # fmt: skip
wrong("only ValueError itself", "raised", {
    "        except ValueError:\n            pass": "        except ValueError as error:\n"
    "            if type(error) is not ValueError:\n                raise\n            pass"
})  # fmt: skip
wrong("only good ranks update", "does not update where its own batch is broken", {
    UPDATE: "        mine = bool(locals().get('good'))\n" + UPDATE, "with_count[-1] = 1\n": "with_count[-1] = 1\n            good = True\n",
    "pass  # zeros": "good = False  # zeros", "if with_count[-1] > 0:": "if with_count[-1] > 0 and mine:"
})  # fmt: skip
wrong("a gradient of zeros is broken", "train_epoch", {
    "            with_count[-1] = 1\n": "            with_count[-1] = float(with_count[:-1].any())\n"
})  # fmt: skip
wrong("all skip", "the good batches are thrown away", {
    REDUCE: "        whole = with_count[-1:].clone()\n        dist.all_reduce(whole, dist.ReduceOp.MIN)\n" + REDUCE,
    "if with_count[-1] > 0": "if whole > 0",
})  # fmt: skip
wrong("asked twice", "in another order", {
    "        try:\n": "        try:\n            gradient(batch)\n"
})  # fmt: skip
wrong("all gradients first", "in another order", {
    TRY + REDUCE + UPDATE: "        with_count[-1] = 0\n    tables = []\n    for batch in batches:\n"
    "        with_count = torch.zeros(features + 1)\n" + TRY + "        tables.append(with_count)\n"
    "    for with_count in tables:\n" + REDUCE + UPDATE
})  # fmt: skip
wrong("three collectives a step", "there are more collectives", {
    REDUCE: "        dist.all_reduce(torch.zeros(1))\n        dist.all_reduce(torch.zeros(1))\n" + REDUCE
})  # fmt: skip
wrong("a barrier in each step", "calls dist.barrier", {REDUCE: REDUCE + "        dist.barrier()\n"})
wrong("half precision", "is all of it computed in float32", {
    REDUCE: "        with_count = with_count.half()\n" + REDUCE + "        with_count = with_count.float()\n"
})  # fmt: skip
wrong("Ctrl-C is a broken batch", SWALLOWED, {"except ValueError": "except (ValueError, KeyboardInterrupt)"})
wrong("no words, no broken batch", "raised ValueError", {
    "            pass  # zeros take part": "            if not error.args:\n                raise",
    "except ValueError": "except ValueError as error",
})  # fmt: skip
wrong("a mistake in the last step", SWALLOWED, {
    "for batch in batches": "for step, batch in enumerate(batches)",
    "            pass  # zeros take part\n": "            pass\n        except Exception:\n            if step + 1 < len(batches):\n                raise\n",
})  # fmt: skip
wrong(
    "not waited for", "never waits for", {"dist.all_reduce(with_count)": "dist.all_reduce(with_count, async_op=True)"}
)
wrong(
    "the batches are used up", "`batches`", {"for batch in batches:": "while batches:\n        batch = batches.pop(0)"}
)
wrong(
    "stops at a broken batch", "skips its collective too", {"            pass  # zeros take part": "            break"}
)
wrong(
    "the count as well",
    "another shape or type",
    {"update(with_count[:-1] / with_count[-1])": "update(with_count / with_count[-1])"},
)
wrong("three features", "train_epoch", {"features + 1": "4"})
wrong("ValueErrors with other words", "train_epoch raised ValueError", {
    "        except ValueError:\n            pass": "        except ValueError as error:\n"
    "            if 'broken' not in str(error):\n                raise\n            pass"
})  # fmt: skip
wrong("AssertionErrors too", SWALLOWED, {"except ValueError": "except (ValueError, AssertionError)"})
wrong("ArithmeticErrors too", SWALLOWED, {"except ValueError": "except (ValueError, ArithmeticError)"})
wrong("what libraries raise", SWALLOWED, {"except ValueError": "except (ValueError, EOFError, AttributeError)"})
wrong("raised at the end of the epoch", "lets it out later", {
    "    for batch in batches:\n": "    mistakes = []\n    for batch in batches:\n",
    "            pass  # zeros take part\n": "            pass\n        except Exception as error:\n            mistakes.append(error)\n",
    UPDATE: UPDATE + "\n    if mistakes:\n        raise mistakes[0]",
})  # fmt: skip
wrong("a table that is not cleared", "does not have the right numbers", {
    "    for batch in batches:\n        with_count = torch.zeros(features + 1)\n":
    "    with_count = torch.zeros(features + 1)\n    for batch in batches:\n        with_count[-1] = 0\n"
})  # fmt: skip
wrong("StopIteration ends the epoch", SWALLOWED, {
    "    for batch in batches:\n        with_count = torch.zeros(features + 1)\n" + TRY:
    "    def table_of(batch):\n        try:\n            return torch.cat([gradient(batch), torch.ones(1)])\n"
    "        except ValueError:\n            return torch.zeros(features + 1)\n\n"
    "    for with_count in map(table_of, batches):\n"
})  # fmt: skip
wrong("files that are not there too", SWALLOWED, {"except ValueError": "except (ValueError, FileNotFoundError)"})
wrong("warnings too", SWALLOWED, {"except ValueError": "except (ValueError, UserWarning)"})
wrong("sys.exit() too", SWALLOWED, {"except ValueError": "except (ValueError, SystemExit)"})
wrong(
    "what is no Exception",
    SWALLOWED,
    {
        "        except ValueError:\n            pass  # zeros take part\n": (
            "        except BaseException as error:\n"
            "            if isinstance(error, (Exception, KeyboardInterrupt, SystemExit)):\n"
            "                if not isinstance(error, ValueError):\n                    raise\n"
        )
    },
)
wrong(
    "map, which takes StopIteration for the end",
    "`map` and `next` take it for the end",
    {
        "    for batch in batches:\n": "    found = map(gradient, batches)\n    while True:\n",
        "gradient(batch)\n": "next(found)\n",
        "        except ValueError:\n": "        except StopIteration:\n            break\n        except ValueError:\n",
    },
)


@wrong("the batches' own errors too", "swallows a ValueError of batches")
def of_batches():
    def train_epoch(batches, gradient, features, update):
        batches, nothing = iter(batches), object()
        while True:
            with_count = torch.zeros(features + 1)
            try:
                if (batch := next(batches, nothing)) is nothing:
                    return
                with_count[:-1] = gradient(batch)
                with_count[-1] = 1
            except ValueError:
                pass
            dist.all_reduce(with_count)
            if with_count[-1] > 0:
                update(with_count[:-1] / with_count[-1])

    return (train_epoch,)
