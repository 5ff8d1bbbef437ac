"""Check of ``torchrun_line``: what the nodes of a Slurm job type, as torchrun's own parser reads it."""

from __future__ import annotations

import builtins
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from checks.core import Reference, leaves, refuse
from checks.plain import shorten
from checks.torchrun.slurm_starts import PROGRAM, environment, read

PORTS, APART = range(10_000, 30_000), 1_000
LIST, FIRST = 're.match(r"([^,[]+)(?:\\[(\\d+))?", slurm["SLURM_JOB_NODELIST"]).groups()', "{prefix}{number or ''}"
JOB, RESTARTS = 'int(slurm["SLURM_JOB_ID"]) % 20_000', ".{slurm.get('SLURM_RESTART_COUNT', '0')}"
HOST, C10D = "is_host={int(slurm['SLURM_NODEID'] == '0')}", '        "--rdzv-backend=c10d",\n'
LOCAL = "        f\"--local-addr={slurm['SLURMD_NODENAME']}\",\n"
NODES, GPUS = "        f\"--nnodes={slurm['SLURM_JOB_NUM_NODES']}\",\n", "{slurm['SLURM_GPUS_ON_NODE']}"
ITSELF = "each has to come to the same by itself, from what Slurm tells all of them"
MEET = "the agents meet on the first node of the list"
OFFICIAL = Reference("torchrun", "torchrun_line", {
    "the program is not started: its words come last, as they are, and torchrun's options before them":
        {"        *program,\n": "", '        "torchrun",\n': '        "torchrun",\n        *program,\n'},
    "the program and its options are one word: give torchrun a word for each":
        {"        *program,\n": '        " ".join(program),\n'},
    "the program's own options are missing": {"        *program,\n": "        program[0],\n"},
    "without --nnodes the job has one node": {NODES: ""},
    "--nnodes=1:N lets the job go on with fewer nodes, and all are to take part": {"--nnodes=": "--nnodes=1:"},
    "--nproc-per-node is for one node, not for all of them together":
        {GPUS: "{int(slurm['SLURM_GPUS_ON_NODE']) * int(slurm['SLURM_NTASKS'])}"},
    "a node starts a worker for each GPU, not for each processor": {"GPUS_ON_NODE": "CPUS_ON_NODE"},
    "after a failure all workers are started anew, once: --max-restarts": {'        "--max-restarts=1",\n': ""},
    "--standalone is for one node: each would train alone": {C10D: '        "--standalone",\n'},
    "without --rdzv-backend=c10d, each node has to say its number, --node-rank": {C10D: ""},
    "torchrun guesses the node's own address, if --local-addr does not say it": {LOCAL: ""},
    "--local-addr is a node's own name, not that of the first node":
        {"SLURMD_NODENAME']": "SLURM_JOB_NODELIST'].split(',')[0]"},
    "torchrun guesses on which node the store is, if --rdzv-conf=is_host does not say it":
        {f'        f"--rdzv-conf={HOST}",\n': ""},
    "the store is on one node: is_host=1 on node 0, is_host=0 on the others": {HOST: "is_host=1"},
    "the store is on node 0: is_host=1 there, is_host=0 on the others": {"== '0'": "!= '0'"},
    f"{MEET}, which may be in brackets with others: gpu[07-09] begins with gpu07":
        {FIRST: "{slurm['SLURM_JOB_NODELIST'].split(',')[0]}"},
    f"{MEET}, and numbers keep their zeros: gpu[07-09] begins with gpu07":
        {FIRST: "{prefix}{int(number) if number else ''}"},
    f"{MEET}, not each on its own": {FIRST: "{slurm['SLURMD_NODENAME']}"},
    f"{MEET}, which need not be the first one in brackets":
        {LIST: '(re.match(r"(.*?)\\[(\\d+)", slurm["SLURM_JOB_NODELIST"]) or '
               're.match(r"([^,]+)()", slurm["SLURM_JOB_NODELIST"])).groups()'},
    f"{MEET}, and names may have hyphens":
        {FIRST: "{slurm['SLURM_JOB_NODELIST'].split(',')[0].replace('[', '').split('-')[0]}"},
    "no port is named, and torchrun's usual one may be somebody else's": {f"{FIRST}:{{port}}": FIRST},
    "the job's number itself is no port: they go from 10,000 to 29,999":
        {f"10_000 + {JOB}": 'int(slurm["SLURM_JOB_ID"])'},
    "all jobs have one port: two that share a node would meet": {JOB: "0"},
    "a job has the port of the next one: where they share a node, they meet":
        {JOB: 'int(slurm["SLURM_JOB_ID"]) // 2 % 20_000'},
    "hash() of a text differs from process to process, so each node has another port":
        {JOB: 'hash(slurm["SLURM_JOB_ID"]) % 20_000'},
    f"each node has another port: {ITSELF}":
        {JOB: '(int(slurm["SLURM_JOB_ID"]) + int(slurm["SLURM_NODEID"])) % 20_000'},
    f"each node has another --rdzv-id: {ITSELF}": {RESTARTS: RESTARTS + ".{slurm['SLURM_NODEID']}"},
    "without --rdzv-id all jobs have the same one":
        {f"        f\"--rdzv-id={{slurm['SLURM_JOB_ID']}}{RESTARTS}\",\n": ""},
    "a job that comes back from the queue has its old --rdzv-id, and may meet agents that are left over":
        {RESTARTS: ""},
})  # fmt: skip
CASES = [
    {"SLURM_JOB_NODELIST": text, "job": job, "GPUs": gpus, "nodes": text.split(",") if "[" not in text else names}
    for text, job, gpus, names in (
        ("gpu[07-09]", 1204, 4, ["gpu07", "gpu08", "gpu09"]), ("n1.rack4,n2.rack4", 29_998, 8, []),
        ("login-3,gpu[0007,0010-0011]", 3_999_990, 2, ["login-3", "gpu0007", "gpu0010", "gpu0011"]),
        ("node-a100-07", 19_999, 1, []), ("c3-n[9-10],login2", 77, 3, ["c3-n9", "c3-n10", "login2"]))
]  # fmt: skip


def play(case: dict[str, Any], torchrun_line: Callable[..., Any]) -> dict[str, Any]:
    def line(node: int, job: int, restarts: int = 0) -> Any:
        slurm, program = environment(case, node, job, restarts), list(PROGRAM)
        with _on_another_node(node), leaves(slurm=slurm, program=program):
            words = torchrun_line(slurm, program)
        plain = isinstance(words, list | tuple) and words and all(isinstance(word, str) for word in words)
        refuse(not plain, "torchrun_line returns a list of words, each a text", measured=shorten(words))
        try:
            return read(words)
        except ValueError as error:
            refuse(True, f"torchrun does not take the line of node {node}: {error}", measured=" ".join(words)[:200])

    job, count = case["job"], len(case["nodes"])
    lines = [line(node, job) for node in range(count)]
    said = [_said(options, node, case) for node, options in enumerate(lines)]
    seen = {f"{what} in the line of node {node}": one[what] for what in said[0] for node, one in enumerate(said)}
    if count == 1 and lines[0].standalone:
        return seen | {MEETING: case["nodes"][:1]} | dict(zip(_SAME, [True] * 5 + [APART], strict=True))
    hosts, ports = zip(*(str(one.endpoint).partition(":")[::2] for one in lines), strict=True)
    place = next((n for n, word in enumerate(lines[0].words) if ports[0] and word.endswith(ports[0])), None)
    others = [torchrun_line(environment(case, 0, job + n), list(PROGRAM)) for n in range(APART * (place is not None))]
    jobs = [re.search(r"\d*$", words[place])[0] for words in others]  # type: ignore[index]
    runs = [[line(0, job, restarts).rdzv_id for restarts in range(3)], [line(0, job + n).rdzv_id for n in (0, 1, 500)]]
    apart = [lines[0].rdzv_backend != "c10d" or len({*ids}) == 3 for ids in runs]
    told = [len({*ports}) == 1, len({str(one.rdzv_id) for one in lines}) == 1, *apart]
    told += [all(port.isdigit() and int(port) in PORTS for port in (*ports, *jobs)), len({*jobs})]
    return seen | {MEETING: list(hosts)} | dict(zip(_SAME, told, strict=True))


MEETING = "the addresses at which the nodes meet"
_SAME = ("whether all nodes of a job have one port", "whether all nodes of a job have one --rdzv-id",
         "whether a job that comes back has a --rdzv-id of its own", "whether each job has a --rdzv-id of its own",
         "whether all ports are from 10,000 to 29,999",
         "how many ports 1,000 jobs have whose numbers follow each other",
)  # fmt: skip


def _said(options: Any, node: int, case: dict[str, Any]) -> dict[str, Any]:
    """What a line says, c10d or static; of what torchrun is not to guess, whether it is said."""
    alone, name, right = options.standalone and len(case["nodes"]) == 1, case["nodes"][node], str(int(node == 0))
    host = str(options.conf.get("is_host", "left out")).lower()
    host = {"true": "1", "t": "1", "yes": "1", "y": "1"}.get(host, "0" if host in ("false", "f", "no", "n") else host)
    local, host = (name, right) if options.rdzv_backend == "static" else (options.local_addr, host)
    plain = not (options.module or options.no_python or options.run_path)
    number = options.rdzv_backend != "static" or options.node_rank == node
    return {
        "the program": [options.training_script, *options.training_script_args] if plain else "no script",
        "--nnodes": [options.least, options.most],
        "--nproc-per-node": options.nproc_per_node,
        "--max-restarts": options.max_restarts,
        "whether --rdzv-backend lets the nodes meet with nothing else started": alone
        or (not options.standalone and options.rdzv_backend in ("static", "c10d")),
        "whether --node-rank is said without c10d": alone or number,
        "--local-addr": name if alone else local,
        "--rdzv-conf=is_host": right if alone else host,
    }


@contextlib.contextmanager
def _on_another_node(node: int) -> Iterator[None]:
    """Python's ``hash`` of a text differs from process to process."""
    real = builtins.hash
    builtins.hash = lambda thing: real(thing) if isinstance(thing, int | float) else real((node, thing))
    try:
        yield
    finally:
        builtins.hash = real
