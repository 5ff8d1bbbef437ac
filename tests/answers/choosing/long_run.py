"""Exercise 5 of the lab on choosing: days and euros. What is not here is in the official solution."""

from known_answers import right, wrong

LOST = "save / every + every / 2 / between + restart / between"
right("failures are counted", {f"lost = {LOST}": "failures = pure / between\n"
      "    lost = (pure / every * save + failures * (every / 2 + restart)) / pure"})  # fmt: skip
right(
    "hours, by a rate of failures",
    {"between = failure_hours * 3600 / gpus": "rate = gpus / failure_hours / 3600\n    between = rate**-1"},
)
right("steps by floor division", {"math.ceil(tokens / step_tokens)": "-(-tokens // step_tokens)",
      "whole / 86400, every / 60": "whole / 60 / 60 / 24, every * (1 / 60)"})  # fmt: skip
wrong(
    "two numbers", "the result is not three numbers", {"return whole / 86400, every / 60, ": "return whole / 86400, "}
)
wrong("seconds", "days: not what the exercise says", {"return whole / 86400": "return whole"})
