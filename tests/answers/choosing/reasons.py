"""Exercise 1 of the lab on choosing: the reasons as numbers. What is not here is in the official solution."""

from fractions import Fraction

from known_answers import right, wrong

from utils.training.models import LLAMA_70B, llama_parameter_count

right("a list, of numpy's", {"return states, traffic, bubble, max(compute, traffic / nics)":
                             "return numpy.array([states, traffic, bubble, max(compute, traffic / nics)])",
                             "def reasons": "import numpy\n\n\ndef reasons"})  # fmt: skip
right("bytes summed one by one", {
    "    traffic = each": "    each = sum(2 * m + 2 * m + 4 * m if plan.pipeline == 1 else 2 + 4 for _ in range(1))\n    traffic = each",
})  # fmt: skip


@right("cases, not formulas")
def cases():
    def reasons(plan, nics):
        sharing = plan.shard * plan.context * plan.tensor * plan.pipeline
        parameters = llama_parameter_count(LLAMA_70B)
        batches = 64 // (plan.replicate * plan.shard) // plan.micro
        reach = Fraction(plan.shard * plan.context * plan.tensor, 8)
        moved = 0
        if reach > 1:
            stage = parameters / plan.pipeline
            gathered = 2 * stage if plan.pipeline > 1 else 2 * 2 * stage * batches
            reduced = 4 * stage if plan.pipeline > 1 else 4 * stage * batches
            moved = (gathered + reduced) * float(1 - 1 / reach)
        idle = (plan.pipeline - 1) / batches
        again = {"none": 1, "selective": 7 / 6, "full": 4 / 3}[plan.saved]
        products = 6 * parameters * 64 * 8192 * again / 64 / 989.5e12
        return [
            16 * parameters / sharing / 2**30,
            moved / 1e9,
            idle,
            max(products + idle * products, moved / 1e9 / nics),
        ]

    return (reasons,)


wrong(
    "three numbers",
    "the result is not four numbers",
    {"return states, traffic, bubble, max": "return states, bubble, max"},
)
wrong(
    "the NICs are taken for bytes",
    "seconds at least: not what the exercise says",
    {"traffic / nics": "traffic * 1e9 / nics"},
)
