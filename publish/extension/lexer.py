"""Colours for cells on ranks: what follows ``%%ranks …`` is Python. (Notebooks' own lexer takes it for plain text.)"""

from __future__ import annotations

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.lexers.python import PythonLexer
from pygments.token import Operator, Text
from sphinx.application import Sphinx

ON_RANKS = (r"(?s)(\s*)(%%ranks)([^\n]*\n)(.*)", bygroups(Text, Operator, Text, using(PythonLexer)))


class RanksLexer(IPython3Lexer):
    tokens = IPython3Lexer.tokens | {"root": [ON_RANKS, *IPython3Lexer.tokens["root"]]}


def setup(app: Sphinx) -> None:
    for name in IPython3Lexer.aliases:
        app.add_lexer(name, RanksLexer)
