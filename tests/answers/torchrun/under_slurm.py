import re

from known_answers import right, wrong


def torchrun_line(slurm, program):
    prefix, number = re.match(r"([^,[]+)(?:\[(\d+))?", slurm["SLURM_JOB_NODELIST"]).groups()
    port = 10_000 + int(slurm["SLURM_JOB_ID"]) % 20_000
    return [
        "torchrun",
        f"--nnodes={slurm['SLURM_JOB_NUM_NODES']}",
        f"--nproc-per-node={slurm['SLURM_GPUS_ON_NODE']}",
        "--max-restarts=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={prefix}{number or ''}:{port}",
        f"--rdzv-id={slurm['SLURM_JOB_ID']}.{slurm.get('SLURM_RESTART_COUNT', 0)}",
        f"--rdzv-conf=is_host={int(slurm['SLURM_NODEID'] == '0')}",
        f"--local-addr={slurm['SLURMD_NODENAME']}",
        *program,
    ]


EQUAL = {
    "15: `int(slurm['SLURM_NODEID'] == '0')` → `slurm['SLURM_NODEID'] == '0'`": "torchrun reads True and False too",
    "6: 20000 → 19999": "a port of another formula, and as good",
    "14: 0 → -1": "an id of another form, and as good",
}
LIST = 're.match(r"([^,[]+)(?:\\[(\\d+))?", slurm["SLURM_JOB_NODELIST"]).groups()'
PORT = 'port = 10_000 + int(slurm["SLURM_JOB_ID"]) % 20_000'
ID = "{slurm['SLURM_JOB_ID']}.{slurm.get('SLURM_RESTART_COUNT', 0)}"
HOST = "is_host={int(slurm['SLURM_NODEID'] == '0')}"
LOCAL = "        f\"--local-addr={slurm['SLURMD_NODENAME']}\",\n"
NODES = "        f\"--nnodes={slurm['SLURM_JOB_NUM_NODES']}\",\n"
WORKERS = "{slurm['SLURM_GPUS_ON_NODE']}"
PROGRAM = "        *program,\n"

right("other spellings", {"--nproc-per-node": "--nproc_per_node", "is_host={int(": "is_host={bool(", "=c10d": "=c10d"})
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


@right("one node alone")
def one_node_alone():
    def torchrun_line(slurm, program):
        nodes, node, job = (int(slurm[f"SLURM_{name}"]) for name in ("JOB_NUM_NODES", "NODEID", "JOB_ID"))
        line = ["torchrun", f"--nproc-per-node={slurm['SLURM_GPUS_ON_NODE']}", "--max-restarts", "1"]
        if nodes == 1:
            return [*line, "--standalone", *program]
        first = slurm["SLURM_JOB_NODELIST"].replace("[", "", 1)
        for end in ",-]" if "[" in slurm["SLURM_JOB_NODELIST"].split(",")[0] else ",":
            if end == "-" and "[" in slurm["SLURM_JOB_NODELIST"].split(",")[0]:
                head = slurm["SLURM_JOB_NODELIST"].index("[")
                first = first[:head] + first[head:].split("-")[0]
            else:
                first = first.split(end)[0]
        line += [f"--nnodes={nodes}", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"{first}:{10_000 + job % 19_997}"]
        line += ["--rdzv_id", f"job{job}-{slurm.get('SLURM_RESTART_COUNT', 'first')}"]
        line += ["--rdzv_conf", f"is_host={node == 0}", "--local_addr", slurm["SLURMD_NODENAME"]]
        return line + program

    return (torchrun_line,)


wrong("a text", "returns a list of words", {"return [": 'return " ".join([', PROGRAM + "    ]": PROGRAM + "    ])"})
wrong("no torchrun", "begins with the word torchrun", {'"torchrun",': '"python",'})
wrong("no such option", "does not take the line: unrecognized arguments", {"--max-restarts=1": "--restarts=1"})
wrong("the program first", "does not start the program", {PROGRAM: "", '"torchrun",': '"torchrun", *program,'})
wrong("the program as one word", "does not start the program", {PROGRAM: '        " ".join(program),\n'})
wrong("without its options", "does not start the program", {PROGRAM: "        program[0],\n"})
wrong("a module", "does not start the program", {PROGRAM: '        "-m",\n' + PROGRAM})
wrong("one node", "another number than the job: --nnodes", {NODES: ""})
wrong("elastic", "another number than the job: --nnodes", {"--nnodes=": "--nnodes=1:"})
wrong("workers of all nodes", "another number than the job: --nproc-per-node", {WORKERS: "{int(slurm['SLURM_GPUS_ON_NODE']) * int(slurm['SLURM_NTASKS'])}"})  # fmt: skip
wrong("processors", "another number than the job: --nproc-per-node", {"GPUS_ON_NODE": "CPUS_ON_NODE"})
wrong("no restarts", "another number than the job: --max-restarts", {'        "--max-restarts=1",\n': ""})
wrong("each alone", "each would train alone", {'"--rdzv-backend=c10d"': '"--standalone"'})
wrong("no number", "each node has to say its number", {'        "--rdzv-backend=c10d",\n': ""})
wrong("etcd", "needs a server", {"=c10d": "=etcd-v2"})
wrong("no address of its own", "lets torchrun guess its address", {LOCAL: ""})
wrong("all have the first one's address", "lets torchrun guess its address", {"SLURMD_NODENAME']": "SLURM_JOB_NODELIST'].split(',')[0]"})  # fmt: skip
wrong("nobody says who hosts", "does not say whether the store is on it", {f'        f"--rdzv-conf={HOST}",\n': ""})
wrong("all host", "does not say whether the store is on it", {HOST: "is_host=1"})
wrong("who hosts is not 0", "does not say whether the store is on it", {"== '0'": "!= '0'"})
wrong("brackets stay", "do not meet on the first node", {"{prefix}{number or ''}": "{slurm['SLURM_JOB_NODELIST'].split(',')[0]}"})  # fmt: skip
wrong("zeros are lost", "do not meet on the first node", {"{number or ''}": "{int(number) if number else ''}"})
wrong("each its own", "do not meet on the first node", {"{prefix}{number or ''}": "{slurm['SLURMD_NODENAME']}"})
wrong("no port", "the port is a number from", {"''}:{port}": "''}"})
wrong("any port", "the port is a number from", {PORT: 'port = int(slurm["SLURM_JOB_ID"])'})
wrong("ports of users too", "the port is a number from", {PORT: 'port = 8_000 + int(slurm["SLURM_JOB_ID"]) % 22_000'})
wrong("of the usual ones", "the same port", {PORT: "port = 29_500"})
wrong("few ports", "the same port", {"% 20_000": "% 10"})
wrong("by steps", "the same port", {'int(slurm["SLURM_JOB_ID"]) % 20_000': 'int(slurm["SLURM_JOB_ID"]) // 10 % 20_000'})
wrong("a hash", "different addresses or ports", {'int(slurm["SLURM_JOB_ID"])': 'hash(slurm["SLURM_JOB_ID"])'})
wrong("a port for each node", "different addresses or ports", {'int(slurm["SLURM_JOB_ID"])': '(int(slurm["SLURM_JOB_ID"]) + int(slurm["SLURM_NODEID"]))'})  # fmt: skip
wrong("an id for each node", "different runs (--rdzv-id)", {ID: ID + ".{slurm['SLURM_NODEID']}"})
wrong("no id", "has the --rdzv-id that", {f'        f"--rdzv-id={ID}",\n': ""})
wrong("one id for all its lives", "before it came back from the queue", {ID: "{slurm['SLURM_JOB_ID']}"})
wrong("changes what it is given", "slurm", {"    prefix, number": '    slurm.setdefault("SLURM_RESTART_COUNT", "0")\n    prefix, number'})  # fmt: skip
wrong("a free port", "different addresses or ports", {
    PORT: "import socket\n    with socket.socket() as probe:\n        probe.bind(('127.0.0.1', 0))\n        port = 10_000 + probe.getsockname()[1] % 20_000"
})  # fmt: skip
wrong("the first bracket", "do not meet on the first node", {
    LIST: '(re.match(r"(.*?)\\[(\\d+)", slurm["SLURM_JOB_NODELIST"]) or re.match(r"([^,]+)()", slurm["SLURM_JOB_NODELIST"])).groups()'
})  # fmt: skip
wrong("up to the first hyphen", "do not meet on the first node", {"{prefix}{number or ''}": "{slurm['SLURM_JOB_NODELIST'].split(',')[0].replace('[', '').split('-')[0]}"})  # fmt: skip
HASH = "have the same port"
wrong("md5", HASH, {PORT: 'import hashlib\n    port = 10_000 + int(hashlib.md5(slurm["SLURM_JOB_ID"].encode()).hexdigest(), 16) % 20_000'})  # fmt: skip
wrong("dice", HASH, {PORT: 'import random\n    port = random.Random(slurm["SLURM_JOB_ID"]).randint(10_000, 29_999)'})
wrong("999 ports", HASH, {"% 20_000": "% 999"})
wrong("a port for each run", HASH, {'int(slurm["SLURM_JOB_ID"]) %': '(int(slurm["SLURM_JOB_ID"]) + int(slurm.get("SLURM_RESTART_COUNT", 0))) %'})  # fmt: skip
wrong("only whether it came back", "before it came back from the queue", {"slurm.get('SLURM_RESTART_COUNT', 0)": "'SLURM_RESTART_COUNT' in slurm"})  # fmt: skip
wrong("kept by job and node", "before it came back from the queue", {
    "def torchrun_line(slurm, program):\n": "known = {}\n\n\ndef torchrun_line(slurm, program):\n    key = slurm['SLURM_JOB_ID'], slurm['SLURM_NODEID']\n"
    "    if key in known:\n        return known[key]\n",
    "    return [": "    known[key] = [", PROGRAM + "    ]": PROGRAM + "    ]\n    return known[key]",
})  # fmt: skip
