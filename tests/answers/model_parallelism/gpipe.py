"""Exercise 2 of the lab on model parallelism: a step of a pipeline, as GPipe runs it."""

import torch
from known_answers import right, wrong


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)


ZIP = "zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True)"
MOVE = 'x = stage(x.to(f"simgpu:{i}"))'
KEEP = "losses.append(loss_fn(x, y) * len(y) / len(targets))"
BACK = "        loss.backward()\n"
BEGIN = "    losses = []\n"
GIVE = "return sum(loss.detach() for loss in losses)"
EQUAL = {
    f"6: `{ZIP}` without strict": "both are cut into as many parts",
    "6: True → False": "both are cut into as many parts",
    "12: `loss.detach()` → `loss`": "its backward has let go of all that it held",
}


# --- right, and written differently


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


@right("shares as weights of the gradient, backwards from the last, larger parts last")
def weights_of_the_gradient():
    def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
        n, m = batch.shape[0], micro_batches
        sizes = [(n + k) // m for k in range(m)]
        losses = []
        for x, y in zip(torch.split(batch, sizes), torch.split(targets, sizes), strict=True):
            for i, stage in enumerate(stages):
                x = stage(x) if i == 0 else stage(x.to(device=torch.device("simgpu", i)))
            losses.append(loss_fn(x, y))
        for loss, size in reversed(list(zip(losses, sizes, strict=True))):
            torch.autograd.backward([loss], [torch.full_like(loss, size / n)])
        return torch.stack([loss.detach() * size for loss, size in zip(losses, sizes, strict=True)]).sum() / n

    return (gpipe_step,)


@right("autograd.grad, and the gradients by hand")
def by_hand():
    def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
        parameters = [q for stage in stages for q in stage.parameters() if q.requires_grad]
        parameters = list(dict.fromkeys(parameters))
        losses = []
        for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
            for i, stage in enumerate(stages):
                x = stage(x.to(f"simgpu:{i}"))
            losses.append(loss_fn(x, y) * (y.size(0) / targets.size(0)))
        for loss in losses:
            for q, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                q.grad = gradient if q.grad is None else q.grad + gradient
        return sum(losses).detach()

    return (gpipe_step,)


# --- wrong: numbers

wrong("loss without weight", "each micro-batch counts fully", {" * len(y) / len(targets)": ""})
wrong(
    "mean of the means",
    "the mean of their means is not the mean over the batch",
    {"len(y) / len(targets)": "1 / micro_batches"},
)
wrong("rest left out", "the samples at the end of the batch are left out", {
    "batch.tensor_split(micro_batches)": "batch.split(len(batch) // micro_batches)[:micro_batches]",
    "targets.tensor_split(micro_batches)": "targets.split(len(batch) // micro_batches)[:micro_batches]",
})  # fmt: skip
wrong("last gradient only", "later ones must be added to .grad", {
    BACK: "        for stage in stages:\n            stage.zero_grad()\n" + BACK
})  # fmt: skip
wrong("detached at the border", "have no gradients: a tensor was detached", {"x.to(f": "x.detach().to(f"})
wrong(
    "copies of the stages",
    "ran on copies of the stages",
    {BEGIN: BEGIN + "    stages = __import__('copy').deepcopy(stages)\n"},
)
wrong("no backward", "no stage has gradients", {BACK: "        pass\n"})
wrong("loss returned without weight", "without their weights", {
    KEEP: "losses.append(loss_fn(x, y))", BACK: "        pass\n    for loss, y in zip(losses, targets.tensor_split(micro_batches)):\n        (loss * len(y) / len(targets)).backward()\n"
})  # fmt: skip
wrong("the last loss", "the loss that you return", {GIVE: "return loss.detach()"})
wrong("a number", "a number goes to the host", {GIVE: "return sum(loss.item() for loss in losses)"})
wrong("a list of losses", "as a tensor with one number", {GIVE: "return [loss.detach() for loss in losses]"})
wrong("gradients in bfloat16", "are not those of one device", {
    "    " + GIVE: "    for stage in stages:\n        for q in stage.parameters():\n            if q.grad is not None:\n"
    "                q.grad = q.grad.bfloat16().float()\n    " + GIVE
})  # fmt: skip
wrong("thrown away below a bound", "are not those of one device", {
    "    " + GIVE: "    for stage in stages:\n        torch.nn.utils.clip_grad_norm_([q for q in stage.parameters() if q.requires_grad], 0.01)\n    " + GIVE
})  # fmt: skip


# --- wrong: how it is computed

wrong("no micro-batches", "the whole batch at once", {ZIP: "[(batch, targets)]"})
wrong("chunk gives fewer", "chunk may give fewer pieces", {"tensor_split": "chunk"})
wrong("backward after each forward", "GPipe runs the forward of all micro-batches first", {
    KEEP: KEEP + "\n        losses[-1].backward()", BACK: "        pass\n"
})  # fmt: skip
wrong("copies after all forwards", "launch it as soon as the stage has its result", {
    "    for x, y in " + ZIP + ":\n        for i, stage in enumerate(stages):\n            " + MOVE + "\n        " + KEEP + "\n":
    "    xs, ys = list(batch.tensor_split(micro_batches)), targets.tensor_split(micro_batches)\n"
    "    for i, stage in enumerate(stages):\n        xs = [x.to(f'simgpu:{i}') for x in xs]\n        xs = [stage(x) for x in xs]\n"
    "    losses = [loss_fn(x, y) * len(y) / len(targets) for x, y in zip(xs, ys)]\n"
})  # fmt: skip
wrong("forward computed again", "is something computed twice?", {KEEP: KEEP + "\n        stage(x)"})
wrong("item each time", "a number goes to the host", {KEEP: KEEP + "\n        losses[-1].item()"})
wrong(
    "synchronizes each time", "synchronize makes the host wait", {KEEP: KEEP + "\n        torch.simgpu.synchronize()"}
)
wrong("results back to the first GPU", "in the wrong place", {
    KEEP: "losses.append((loss_fn(x, y) * len(y) / len(targets)).to('simgpu:0'))"
})  # fmt: skip
wrong(
    "all stages on the first GPU",
    "stage i stays on GPU i",
    {
        BEGIN: BEGIN
        + "    stages = [stage.to('simgpu:0') for stage in stages]\n    targets = targets.to('simgpu:0')\n",
        "simgpu:{i}": "simgpu:0",
    },
)
wrong(
    "twice over each border",
    "one activation forward and one gradient back",
    {MOVE: "x.to(f'simgpu:{i}')\n            " + MOVE},
)
wrong(
    "targets go round", "one activation forward", {KEEP: KEEP + "\n        y.to(f'simgpu:{max(0, len(stages) - 2)}')"}
)


# --- wrong: what else is changed

wrong("eval", "is in another mode", {BEGIN: BEGIN + "    [stage.eval() for stage in stages]\n"})
wrong("thaws", "it was frozen, or thawed", {BEGIN: BEGIN + "    [stage.requires_grad_() for stage in stages]\n"})
wrong("empties the list of stages", "as before", {"    " + GIVE: "    stages.clear()\n    " + GIVE})
wrong("normalises the batch in place", "`batch` has other numbers", {"    " + GIVE: "    batch.zero_()\n    " + GIVE})
wrong("keeps the losses", "stays in a GPU's memory", {
    "def gpipe_step": "known = []\n\n\ndef gpipe_step", "    " + GIVE: "    known.append(losses[0].detach() + 0)\n    " + GIVE
})  # fmt: skip
wrong(
    "leaves a hook",
    "a hook more than before",
    {BEGIN: BEGIN + "    stages[0].register_forward_hook(lambda *_: None)\n"},
)
wrong("seeds", "random numbers other than before", {BEGIN: BEGIN + "    torch.manual_seed(0)\n"})
wrong("the optimizer's step too", "has other numbers than before", {
    "    " + GIVE: "    with torch.no_grad():\n        for q in stages[0].parameters():\n            if q.grad is not None:\n"
    "                q -= 0.1 * q.grad\n    " + GIVE
})  # fmt: skip


# --- right numbers here, by luck on a real GPU

RACE = "nothing says which of two streams comes first"
wrong("copies in other streams", RACE, {
    MOVE: """if i:
                with torch.simgpu.stream(torch.simgpu.Stream(i - 1)), torch.simgpu.stream(torch.simgpu.Stream(i)):
                    x = x.to(f"simgpu:{i}")
            x = stage(x)"""
})  # fmt: skip
wrong("copies that wait for the sender only", RACE, {
    MOVE: """if i:
                out = torch.simgpu.Stream(i - 1)
                out.wait_stream(torch.simgpu.current_stream(i - 1))
                with torch.simgpu.stream(out), torch.simgpu.stream(torch.simgpu.Stream(i)):
                    x = x.to(f"simgpu:{i}")
            x = stage(x)"""
})  # fmt: skip
wrong("adds up the losses beside", RACE, {
    "    " + GIVE: "    with torch.simgpu.stream(torch.simgpu.Stream(len(stages) - 1)):\n        " + GIVE
})  # fmt: skip
wrong("the loss in a stream of its own", RACE, {
    KEEP: "with torch.simgpu.stream(torch.simgpu.Stream(len(stages) - 1)):\n            " + KEEP
})  # fmt: skip


# --- wrong: what was there before, and the next call

wrong(
    "clears the gradients first",
    "the gradients that were there before the step are lost",
    {BEGIN: BEGIN + "    [stage.zero_grad() for stage in stages]\n"},
)
wrong("leaves out the stages' hooks", "are not those of one device", {"x = stage(": "x = stage.forward("})
wrong(
    "the number of samples of the first call",
    "are not those of one device",
    {"/ len(targets)": "/ gpipe_step.__dict__.setdefault((micro_batches, len(stages)), len(targets))"},
)
wrong(
    "the same weight for all, when they are many",
    "the mean of their means",
    {"len(y) / len(targets)": "(1 / micro_batches if len(targets) > 8 * micro_batches else len(y) / len(targets))"},
)
wrong("the loss keeps a graph that was retained", "graph that was retained holds all of them", {
    BACK: "        loss.backward(retain_graph=True)\n", GIVE: "return sum(losses)"
})  # fmt: skip
