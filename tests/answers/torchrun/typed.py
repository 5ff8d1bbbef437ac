"""Exercise 2 of the lab on torchrun: one line for every node. What is not here is in the official solution."""

from known_answers import right, wrong

RANK, STORE = "--node-rank=$NODE", " --master-addr=$FIRST --master-port=$PORT"
C10D = "--rdzv-backend=c10d --rdzv-endpoint=$FIRST:$PORT --local-addr=127.0.0.1 --rdzv-conf=is_host=$((NODE == 0))"

right("c10d", {RANK + STORE: C10D})
right("the module of torch, other spellings, lines and a comment", {
    '"torchrun --nnodes=$NODES': '"# on each node\\ncd . && python -m torch.distributed.run --nnodes ${NODES}',
    "nproc-per-node=$GPUS ": "nproc_per_node $GPUS \\\\\\n",
})  # fmt: skip
right("one node alone in another way", {
    '"torchrun ': '"if [ $NODES = 1 ]; then exec torchrun --standalone --nproc-per-node=$GPUS --max-restarts=1 \\"$@\\"; fi\\n'
    'torchrun '
})  # fmt: skip
wrong("both are node 0", "So who is it?", {RANK: "--node-rank=0"})
wrong("torchrun's own port", "torchrun's usual port", {STORE: ""})
wrong("each alone", "all workers of all nodes are one world", {RANK + STORE: "--standalone", "--nnodes=$NODES ": ""})
wrong("without quotes", "each word for itself", {'"$@"': "$@"})
wrong("not started anew", "nothing is started anew", {" --max-restarts=1": ""})
