"""The course as files: which notebooks there are, labs made from solutions, notebooks executed and stored.

    python -m utils.course labs              labs/ from solutions/          build.py, template.py
    python -m utils.course labs --check      is labs/ what that gives?
    python -m utils.course execute FILE…     run notebooks, store outputs   notebooks.py

Nothing is imported here, so that a lab's kernel pays for none of it.
"""
