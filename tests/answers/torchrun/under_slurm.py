"""Exercise 7 of the lab on torchrun: the same line on every node. What is not here is in the official solution."""

from known_answers import right, wrong

PORT, PROGRAM = 'port = 10_000 + int(slurm["SLURM_JOB_ID"]) % 20_000', "        *program,\n"

right("other spellings", {"--nproc-per-node": "--nproc_per_node", "is_host={int(": "is_host={bool("})

right("from the end of the ports", {PORT: 'port = 29_999 - int(slurm["SLURM_JOB_ID"]) % 1_001'})

right("a tuple, and nodes as a range", {"return [": "return (", PROGRAM + "    ]": PROGRAM + "    )", "JOB_NUM_NODES']}": "JOB_NUM_NODES']}:{slurm['SLURM_NTASKS']}"})  # fmt: skip

right("the module of torch", {'"torchrun",': '"python3", "-m", "torch.distributed.run",'})

right("a separator, and options of Python", {'"torchrun",': '"python", "-u", "-m", "torch.distributed.run",', PROGRAM: '        "--",\n' + PROGRAM})  # fmt: skip

right("the last digits", {PORT: 'port = 10_000 + int(slurm["SLURM_JOB_ID"][-3:])'})

right("mixed", {PORT: 'port = 12_000 + 7 * int(slurm["SLURM_JOB_ID"]) % 9_973'})


@right("static")
def static():
    def torchrun_line(slurm, program):
        names = slurm["SLURM_JOB_NODELIST"]
        first = names.split(",")[0].replace("]", "")
        if "[" in first:
            head, _, numbers = first.partition("[")
            first = head + numbers.split("-")[0]
        job = int(slurm["SLURM_JOB_ID"])
        options = {
            "nnodes": slurm["SLURM_JOB_NUM_NODES"],
            "nproc-per-node": slurm["SLURM_GPUS_ON_NODE"],
            "node-rank": slurm["SLURM_NODEID"],
            "master-addr": first,
            "master-port": str(20_000 + job % 9_973),
            "max-restarts": "1",
        }
        return ["torchrun", *(word for name, value in options.items() for word in (f"--{name}", value)), *program]

    return (torchrun_line,)


right("one node alone", {
    "    prefix, number = re": '    if slurm["SLURM_JOB_NUM_NODES"] == "1":\n        gpus = slurm["SLURM_GPUS_ON_NODE"]\n'
    '        return ["torchrun", "--standalone", "--nproc-per-node", gpus, "--max-restarts", "1", *program]\n'
    "    prefix, number = re"
})  # fmt: skip
NAMED = "how many ports 1,000 jobs have whose numbers follow each other"
wrong("a text", "returns a list of words", {"return [": 'return " ".join([', PROGRAM + "    ]": PROGRAM + "    ])"})
wrong("no torchrun", "begins with the word torchrun", {'"torchrun",': '"python",'})
wrong(
    "no such option", "does not take the line of node 0: unrecognized arguments", {"--max-restarts=1": "--restarts=1"}
)
wrong("etcd", "whether --rdzv-backend lets the nodes meet", {"=c10d": "=etcd-v2"})
wrong(
    "md5",
    NAMED,
    {PORT: "port = 10_000 + int(__import__('hashlib').md5(slurm['SLURM_JOB_ID'].encode()).hexdigest(), 16) % 20_000"},
)
wrong("999 ports", NAMED, {"% 20_000": "% 999"})
wrong("changes what it is given", "changes `slurm`", {
    "    prefix, number = re": '    slurm.setdefault("SLURM_RESTART_COUNT", "0")\n    prefix, number = re'
})  # fmt: skip
