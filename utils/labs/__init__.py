"""Labs: made from the solutions, and graded.

    python -m utils.labs build          labs/ from solutions/        build.py, template.py
    python -m utils.labs build --check  is labs/ what that gives?
    python -m utils.labs grade DIR      a folder of learners' labs   grade.py, handed_in.py, execute.py,
    table.py

Nothing is imported here, so that a lab's kernel pays for none of it.
"""
