"""Exercise 2 of the lab on model parallelism: a step of a pipeline, as GPipe runs it."""

import torch
from known_answers import right, wrong

LOOP = "    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):\n"
MOVE = 'x = stage(x.to(f"simgpu:{i}"))'
KEEP = "losses.append(loss_fn(x, y) * len(y) / len(targets))"
RACE = "nothing says which of two streams comes first"


@right("tick by tick")
def by_clock():
    def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
        p, m = len(stages), micro_batches
        sizes = [len(batch) // m + (k < len(batch) % m) for k in range(m)]
        xs, ys = list(batch.split(sizes)), targets.split(sizes)
        for clock in range(m + p - 1):
            for i in reversed(range(p)):  # all stages that have something to do at this tick
                k = clock - i
                if 0 <= k < m:
                    xs[k] = stages[i](xs[k])
                    if i < p - 1:
                        xs[k] = xs[k].to(f"simgpu:{i + 1}")
        total = torch.zeros((), device=targets.device)
        for x, y, size in zip(xs, ys, sizes, strict=True):
            loss = loss_fn(x, y) * size / len(batch)
            loss.backward()
            total += loss.detach()
        return total

    return (gpipe_step,)


@right("one backward for all")
def one_backward():
    def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
        loss = 0
        for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
            for i in range(len(stages)):
                x = stages[i](x.to(f"simgpu:{i}"))
            loss = loss + loss_fn(x, y) * (len(y) / len(targets))
        loss.backward()
        return loss

    return (gpipe_step,)


wrong("detached at the border", "stage 0 gets no gradients", {"x.to(f": "x.detach().to(f"})
wrong("item each time", "a number goes to the host", {KEEP: KEEP + "\n        losses[-1].item()"})
wrong("forward computed again", "the passes of GPU", {KEEP: KEEP + "\n        stage(x)"})
wrong("copies after all forwards", "the bubble is too large", {
    LOOP + "        for i, stage in enumerate(stages):\n            " + MOVE + "\n        " + KEEP + "\n":
    "    xs, ys = list(batch.tensor_split(micro_batches)), targets.tensor_split(micro_batches)\n"
    "    for i, stage in enumerate(stages):\n        xs = [x.to(f'simgpu:{i}') for x in xs]\n        xs = [stage(x) for x in xs]\n"
    "    losses = [loss_fn(x, y) * len(y) / len(targets) for x, y in zip(xs, ys)]\n"
})  # fmt: skip
wrong("copies that wait for the sender only", RACE, {
    MOVE: """if i:
                out = torch.simgpu.Stream(i - 1)
                out.wait_stream(torch.simgpu.current_stream(i - 1))
                with torch.simgpu.stream(out), torch.simgpu.stream(torch.simgpu.Stream(i)):
                    x = x.to(f"simgpu:{i}")
            x = stage(x)"""
})  # fmt: skip
