"""Exercise 2 of the lab on choosing: a plan for a fast network. What is not here is in the official solution."""

from known_answers import right, wrong

PLAN = "Plan(shard=64)"
right("replicas of 32 shards each", {PLAN: "Plan(replicate=2, shard=32)"})
right("numbers of numpy", {PLAN: "Plan(shard=numpy.int64(64), micro=1.0)", "def on": "import numpy\n\n\ndef on"})
right("two that fit are simulated, and the faster one comes back", {
    f"return {PLAN}": "plans = [Plan(shard=64), Plan(shard=32, context=2, micro=2)]\n"
                      "    return min(plans, key=lambda plan: simulate([plan], LLAMA_70B, 64, 64)[0][0])"
})  # fmt: skip

wrong("less is computed again", "Activations do: a smaller micro-batch", {PLAN: 'Plan(shard=64, saved="selective")'})
wrong("tensor parallelism in the node", "its tensor parallelism sends activations at each layer, which nothing hides",
      {PLAN: "Plan(shard=8, tensor=8, micro=8)"})  # fmt: skip
wrong("the sequence is cut in the node", "its ring of keys and values", {PLAN: "Plan(shard=16, context=4, micro=4)"})
wrong("32 GPUs", "32 GPUs are in the plan, and 64 are there", {PLAN: "Plan(shard=32)"})
wrong("a tuple", "returns no plan: return Plan(…)", {PLAN: "(64, 1)"})
