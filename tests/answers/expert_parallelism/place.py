"""Exercise 4 of the lab on expert parallelism: which expert on which node. What is not here is in the official solution."""

import itertools
import random

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


@right("eighth powers from a random placing, with Python's random numbers")
def powers():
    def place(together, nodes):
        table = together.tolist()
        n, size, load = len(table), len(table) // nodes, [sum(row) for row in table]
        order = list(range(n))
        random.shuffle(order)
        groups = [order[i * size : (i + 1) * size] for i in range(nodes)]

        def cost(group):
            return (sum(load[e] for e in group) - sum(table[a][b] for a in group for b in group) / 2) ** 8

        quiet = 0
        while quiet < 3000:
            one, two = random.sample(groups, 2)
            i, j = random.randrange(size), random.randrange(size)
            before = cost(one) + cost(two)
            one[i], two[j] = two[j], one[i]
            if cost(one) + cost(two) < before:
                quiet = 0
            else:
                one[i], two[j] = two[j], one[i]
                quiet += 1
        where = {e: g for g, group in enumerate(groups) for e in group}
        return tuple(where[e] for e in range(n))

    return (place,)


@right("greedy, then exchanges")
def greedy_and_exchanges():
    def place(together, nodes):
        t = together.numpy()
        n = len(t)
        size, load = n // nodes, t.sum(1)
        groups = [[] for _ in range(nodes)]

        def gets(g):
            return load[g].sum() - t[g][:, g].sum() / 2 if g else 0

        for e in load.argsort()[::-1]:
            free = [g for g in groups if len(g) < size]
            min(free, key=lambda g: gets([*g, e])).append(int(e))
        for _ in range(500):
            changed = False
            groups.sort(key=gets)
            full = groups[-1]
            for other, i, j in itertools.product(groups[:-1], range(size), range(size)):
                before = max(gets(full), gets(other))
                full[i], other[j] = other[j], full[i]
                if max(gets(full), gets(other)) < before:
                    changed = True
                    break
                full[i], other[j] = other[j], full[i]
            if not changed:
                break
        node = [0] * n
        for number, group in enumerate(groups):
            for e in group:
                node[e] = number
        return node

    return (place,)


END = "    return [next(n for n in range(nodes) if e in groups[n]) for e in range(experts)]"
right("as an array of numpy", {END: "    import numpy\n" + END.replace("return [", "return numpy.array([")[:-1] + "])"})
wrong("the sum over all nodes", "in units of the official answer's", {
    "max(received(one), received(two))": "received(one) + received(two)"})  # fmt: skip
wrong("the sum of squares", "in units of the official answer's", {
    "max(received(one), received(two))": "received(one) ** 2 + received(two) ** 2"})  # fmt: skip
wrong(
    "the better node of the two",
    "in units of the official answer's",
    {"max(received(one), received(two))": "min(received(one), received(two))"},
)
wrong("tokens of two experts count twice", "in units of the official answer's", {
    " - sum(rows[a][b] for a, b in itertools.combinations(group, 2))": ""})  # fmt: skip
wrong("popular ones together", "in units of the official answer's", {
    "    better = True\n": "    order = sorted(range(experts), key=lambda e: -load[e])\n"
    "    groups = [order[n * size : (n + 1) * size] for n in range(nodes)]\n    better = False\n"})  # fmt: skip
wrong("groups, not nodes", "not a list of whole numbers", {END: "    return groups"})
wrong("one node is larger", "not equally many experts", {END: "    groups[0].append(groups[1].pop())\n" + END})
wrong("nodes from 1", "the result names others", {"[next(n for": "[next(n + 1 for"})
wrong("nothing comes back", "not a list of whole numbers", {END: END.replace("return", "found =")})
wrong("an expert is missing", "64 numbers", {END: END + "[1:]"})
wrong("greedy alone", "in units of the official answer's", {
    "    better = True\n": "    groups = [[] for _ in range(nodes)]\n"
    "    for e in sorted(range(experts), key=lambda e: -load[e]):\n"
    "        free = [group for group in groups if len(group) < size]\n"
    "        min(free, key=lambda group: received([*group, e])).append(e)\n    better = False\n"})  # fmt: skip
