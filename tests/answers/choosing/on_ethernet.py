"""Exercise 3 of the lab on choosing: a plan for a slow network. What is not here is in the official solution."""

from known_answers import right, wrong

PLAN = 'Plan(context=2, tensor=4, pipeline=8, saved="none")'
right("by position", {PLAN: 'Plan(1, 1, 2, 4, 8, 1, "none")'})
right("a plan that is changed", {PLAN: 'replace(Plan(context=2, tensor=4), pipeline=64 // 8, saved="none")'})
right(
    "by names, in any order",
    {PLAN: 'Plan(**{"saved": "none", "pipeline": 8} | dict.fromkeys(("tensor",), 4), context=2)'},
)

FSDP = "its FSDP moves {} GB into each node"
wrong("as on the fast network", FSDP.format(494), {PLAN: "Plan(shard=64)"})
wrong("tensor parallelism and FSDP across", FSDP.format(494), {PLAN: "Plan(shard=8, tensor=8, micro=8)"})
wrong("two stages", FSDP.format(159), {PLAN: 'Plan(shard=4, tensor=8, pipeline=2, saved="selective")'})
wrong("a part is computed again", "it computes more of the forward pass again", {'"none"': '"selective"'})
wrong(
    "all of a node share each matrix", "its tensor parallelism sends activations", {"context=2, tensor=4": "tensor=8"}
)
