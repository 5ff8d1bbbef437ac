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
wrong("copies of all in each node", "replicas do not share them", {PLAN: "Plan(replicate=8, shard=8)"})
wrong("tensor parallelism in the node", "its tensor parallelism sends activations at each layer, which nothing hides",
      {PLAN: "Plan(shard=8, tensor=8, micro=8)"})  # fmt: skip
wrong("the sequence is cut in the node", "its ring of keys and values", {PLAN: "Plan(shard=16, context=4, micro=4)"})
wrong("small micro-batches", "its tensor parallelism sends activations", {PLAN: "Plan(shard=16, tensor=4)"})
wrong("32 GPUs", "32 GPUs are in the plan, and 64 are there", {PLAN: "Plan(shard=32)"})
wrong("too many sequences", "64 sequences are not whole micro-batches for 64", {PLAN: "Plan(shard=64, micro=2)"})
wrong("a stage for each layer", "at most 8 stages here", {PLAN: "Plan(shard=4, pipeline=16)"})
wrong("a tuple", "returns no plan: return Plan(…)", {PLAN: "(64, 1)"})
wrong("a word of another tool", '`saved` is "none", "selective" or "full"', {PLAN: 'Plan(shard=64, saved="all")'})
wrong("half a GPU", "whole and positive", {PLAN: "Plan(shard=128, micro=0.5)"})
