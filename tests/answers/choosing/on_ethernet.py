"""Exercise 3 of the lab on choosing: a plan for a slow network. What is not here is in the official solution."""

from known_answers import right, wrong

PLAN = 'Plan(tensor=8, pipeline=8, saved="selective")'
wrong("as on the fast network", "its FSDP moves 494 GB into each node", {PLAN: "Plan(shard=64)"})
wrong(
    "tensor parallelism and FSDP across",
    "its FSDP moves 494 GB into each node",
    {PLAN: "Plan(shard=8, tensor=8, micro=8)"},
)
wrong(
    "two stages",
    "its FSDP moves 159 GB into each node",
    {PLAN: 'Plan(shard=4, tensor=8, pipeline=2, saved="selective")'},
)
wrong("four stages", "its FSDP moves 53 GB into each node", {PLAN: "Plan(shard=2, tensor=8, pipeline=4)"})
