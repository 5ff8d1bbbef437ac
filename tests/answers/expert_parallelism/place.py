"""Exercise 4 of the lab on expert parallelism: which expert on which node. What is not here is in the official solution."""

import torch
from known_answers import right, wrong


@right("the fullest node gives an expert away, by torch")
def fullest_node():
    def place(together, nodes):
        experts, load = len(together), together.sum(1)
        node = torch.empty(experts, dtype=torch.long)
        for i, e in enumerate(load.argsort(descending=True)):  # dealt to and fro
            row, place = divmod(i, nodes)
            node[e] = place if row % 2 == 0 else nodes - 1 - place
        while True:
            on = torch.nn.functional.one_hot(node, nodes).T  # [nodes, experts]
            links = together @ on.T  # [experts, nodes]
            got = torch.stack([load[o == 1].sum() - links[o == 1, n].sum() // 2 for n, o in enumerate(on)])
            worst = int(got.argmax())
            best = None
            for a in (node == worst).nonzero().flatten().tolist():
                for b in (node != worst).nonzero().flatten().tolist():
                    other = int(node[b])
                    both = together[a, b]
                    one = got[worst] - load[a] + links[a, worst] + load[b] - links[b, worst] + both
                    two = got[other] - load[b] + links[b, other] + load[a] - links[a, other] + both
                    larger = int(max(one, two))
                    if larger < got[worst] and (best is None or larger < best[0]):
                        best = larger, a, b
            if best is None:
                return node
            _, a, b = best
            node[a], node[b] = node[b].clone(), node[a].clone()

    return (place,)


END = "    return [next(n for n in range(nodes) if e in groups[n]) for e in range(experts)]"
right("as an array of numpy", {END: "    import numpy\n" + END.replace("return [", "return numpy.array([")[:-1] + "])"})
wrong("the sum over all nodes", "in units of the official answer's", {
    "max(received(one), received(two))": "received(one) + received(two)"})  # fmt: skip
wrong(
    "the better node of the two",
    "in units of the official answer's",
    {"max(received(one), received(two))": "min(received(one), received(two))"},
)
wrong("groups, not nodes", "not a list of whole numbers", {END: "    return groups"})
wrong("nodes from 1", "the result names others", {"[next(n for": "[next(n + 1 for"})
wrong("greedy alone", "in units of the official answer's", {
    "    better = True\n": "    groups = [[] for _ in range(nodes)]\n"
    "    for e in sorted(range(experts), key=lambda e: -load[e]):\n"
    "        free = [group for group in groups if len(group) < size]\n"
    "        min(free, key=lambda group: received([*group, e])).append(e)\n    better = False\n"})  # fmt: skip
