"""Exercise 4 of the lab on the GIL and reference counts: errors that hold on. What is not here is in the official solution."""

from known_answers import right, wrong

KEEP = "            errors.append((number, str(error)))\n"
RETURN = "    return errors"
LATER = {"str(error)": "error", RETURN: "    return [(number, str(error)) for number, error in errors]"}
right("lists instead of pairs", {"(number, str(error))": "[number, format(error)]"})
right("without the traceback", LATER | {"(number, error))": "(number, error.with_traceback(None)))"})


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
wrong("the last error is kept", HOLDS, {
    KEEP: "            last = error\n            errors.append((number, str(last)))\n"
})  # fmt: skip
wrong(
    "swept up although nothing leaks", "calls gc.collect()", {KEEP: KEEP + "            __import__('gc').collect()\n"}
)
wrong("tries again", ONCE, {
    KEEP: KEEP + "            try:\n                train_step(x, y)\n            except ValueError:\n                pass\n"
})  # fmt: skip
wrong("swallows everything", "any other error must come out", {"except ValueError": "except Exception"})
