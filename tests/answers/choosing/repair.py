"""Exercise 4 of the lab on choosing: a plan that does not fit. What is not here is in the official solution."""

from dataclasses import replace

from known_answers import right, wrong

from lessons.training.layouts import Plan

right(
    "what fits is sorted", {"return min(fit, key=fit.get)": "return sorted(fit.items(), key=lambda one: one[1])[0][0]"}
)
right("all of three sizes of micro-batch, without breaks",
      {"(1, 2, 4, 8)": "(1, 2, 4)", "                break\n": ""})  # fmt: skip


@right("recursion, from the largest micro-batch")
def recursion():
    def repair(plan, run):
        rows = plan.shard * plan.replicate

        def fits(micro, kept):
            one = Plan(1, rows, plan.context, plan.tensor, plan.pipeline, micro, kept[0])
            seconds, gib = run(one)
            return (
                (seconds, micro, one) if gib < 74 else fits(micro, kept[1:]) if kept[1:] else (float("inf"), micro, one)
            )

        return min(fits(micro, ["selective", "full"]) for micro in (4, 2, 1) if 64 % (rows * micro) == 0)[2]

    return (repair,)


@wrong("all is computed again", "with smaller micro-batches less has to be computed again")
def again():
    return (lambda plan, run: replace(plan, shard=plan.shard * plan.replicate, replicate=1, saved="full"),)


@wrong("one sequence at a time", "larger micro-batches gather all parameters less often")
def small():
    def repair(plan, run):
        plan = replace(plan, shard=plan.shard * plan.replicate, replicate=1, micro=1)
        plans = [replace(plan, saved=saved) for saved in ("none", "selective", "full")]
        return next(one for one in plans if run(one)[1] <= 74)

    return (repair,)


@wrong("replicas stay", "replicas do not share their states: make them shards")
def replicas():
    return (lambda plan, run: replace(plan, saved="full", micro=1),)


@wrong("everything is tried", "runs more than 12 plans")
def everything():
    def repair(plan, run):
        rows, found = plan.shard * plan.replicate, []
        for replicas in (1, 2, 4):
            for micro in (1, 2, 4):
                for saved in ("none", "selective", "full"):
                    one = replace(plan, replicate=replicas, shard=rows // replicas, micro=micro, saved=saved)
                    if 64 % (rows * micro) == 0:
                        seconds, gib = run(one)
                        found += [(seconds, gib, one)] if gib <= 74 else []
        return min(found, key=lambda one: one[0])[2]

    return (repair,)


wrong("the first that fits", "a faster plan fits", {"return min(fit, key=fit.get)": "return next(iter(fit))"})
