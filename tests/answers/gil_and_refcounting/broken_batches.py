"""Exercise 4 of the lab on the GIL and reference counts: errors that hold on. What is not here is in the official solution."""

from known_answers import right, wrong

KEEP = "            errors.append((number, str(error)))\n"
EXCEPT = "except ValueError as error:"
RETURN = "    return errors"
LATER = {"str(error)": "error", RETURN: "    return [(number, str(error)) for number, error in errors]"}
right("lists instead of pairs", {"(number, str(error))": "[number, format(error)]"})
right("frames are cleared", {KEEP: "            __import__('traceback').clear_frames(error.__traceback__)\n" + KEEP})
right("without the traceback", LATER | {"(number, error))": "(number, error.with_traceback(None)))"})
right("by number", {
    "number, (x, y) in enumerate(batches)": "number in range(len(batches))", " train_step(x, y)\n": " train_step(*batches[number])\n"
})  # fmt: skip
right("other errors go through by hand", {
    "except ValueError": "except BaseException",
    KEEP: "            if not isinstance(error, ValueError):\n                raise\n" + KEEP,
})  # fmt: skip
right("the error's name goes", {
    KEEP: "            text = f'{error}'\n            del error\n            errors.append((number, text))\n"
})  # fmt: skip


@right("a dict, and a function for each step")
def with_a_dict():
    def text_of(step, batch):
        try:
            step(*batch)
        except ValueError as error:
            return str(error)

    def train_through_errors(train_step, batches):
        texts = {number: text_of(train_step, batch) for number, batch in enumerate(batches)}
        return [pair for pair in texts.items() if pair[1] is not None]

    return (train_through_errors,)


HOLDS = "an error stays, and with it its traceback"
ONCE = "each batch is trained on once"
wrong("unchanged", HOLDS, LATER)
wrong("the error is deleted", HOLDS, {KEEP: KEEP + "            del error\n"} | LATER)
wrong("the traceback is kept", HOLDS, {
    "    errors = []\n": "    errors, kept = [], []\n", KEEP: KEEP + "            kept.append(error.__traceback__)\n"
})  # fmt: skip
wrong("the last error is kept", HOLDS, {
    KEEP: "            last = error\n            errors.append((number, str(last)))\n"
})  # fmt: skip
wrong("collected", HOLDS, {KEEP: KEEP + "            __import__('gc').collect()\n"} | LATER)
wrong(
    "swept up although nothing leaks", "calls gc.collect()", {KEEP: KEEP + "            __import__('gc').collect()\n"}
)
wrong("only numbers", "a list of pairs", {"(number, str(error))": "number"})
wrong("a dict", "a list of pairs", {RETURN: "    return dict(errors)"})
wrong("tries again", ONCE, {
    KEEP: KEEP + "            try:\n                train_step(x, y)\n            except ValueError:\n                pass\n"
})  # fmt: skip
wrong("swallows everything", "any other error must come out", {"except ValueError": "except Exception"})
wrong("swallows even an interrupt", "any other error must come out", {EXCEPT: "except BaseException as error:"})
wrong("only ValueError itself", "raised", {
    KEEP: "            if type(error) is not ValueError:\n                raise\n" + KEEP
})  # fmt: skip
wrong("stops", ONCE, {KEEP: KEEP + "            break\n"})
