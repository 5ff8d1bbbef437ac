"""Exercise 4 of the lab on model parallelism: a step of a pipeline, with one forward and one backward in turns."""

from known_answers import right, wrong

GET = 'y.backward(receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None'
ARRIVED = "    torch.simgpu.current_stream(copy.device).wait_event(arrived)\n"
RACE = "nothing says which of two streams comes first"


right("the last stage is launched first, parts by split", {
    "        for i in range(p):\n            if todo": "        for i in reversed(range(p)):\n            if todo",
    "xs, ys = batch.tensor_split(m), targets.tensor_split(m)": "sizes = [len(batch) // m + (k < len(batch) % m) for k in range(m)]\n"
    "    xs, ys = batch.split(sizes), targets.split(sizes)",
    "return sum(losses)": "return torch.stack(losses).sum()",
})  # fmt: skip
right("gradients by autograd.grad", {
    GET + ")": "wanted = [q for q in stages[i].parameters() if q.requires_grad]\n"
    '        given = receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None\n'
    "        found = torch.autograd.grad(y, wanted + ([x] if i else []), given)\n        for q, gradient in zip(wanted, found):\n"
    "            q.grad = gradient if q.grad is None else q.grad.add_(gradient)",
    "send(x.grad,": "send(found[-1],",
})  # fmt: skip
wrong("plain copies", "a plain .to() keeps both GPUs waiting", {
    "    outgoing, incoming = ": "    return tensor.to(gpu), None\n    outgoing, incoming = ",
    "    copy, arrived = message\n": "    copy, arrived = message\n    if arrived is None:\n        return copy\n",
})  # fmt: skip
wrong(
    "keeps every graph", "activations of too many", {"kept.pop((i, k))": "kept[i, k]", GET: GET + ", retain_graph=True"}
)
wrong("gradient not sent", "stage 0 gets no gradients", {
    GET + ")": 'gradient = receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None\n        if i == p - 1:\n            y.backward()\n'
    "        else:\n            x.grad = x.detach()"
})  # fmt: skip
wrong("through the host", "a number goes to the host", {"send(x.grad,": "send(x.grad.cpu().to(x.device),"})
wrong("does not wait for what arrives", RACE, {ARRIVED: ""})
