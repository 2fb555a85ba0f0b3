"""Answers that must have a form: JSON of a schema, a regular expression, a choice, a grammar.

    spec          what a request asks for, and what is refused before anybody compiles it
    library       llguidance, an optional package: found, or an error that names the remedy
    vocabulary    the model's tokens as bytes, as that library wants them
    matching      a constraint that is compiled, and follows one answer token by token
    compiling     a few threads, and so much time for each form
    ahead         the masks, too, in a thread beside the forward pass, so that a step waits for neither

A constraint is a parser that runs along with the answer. Before each draw it says which tokens may come next (a bit
for each, a mask), after each it takes the token that came. Which tokens these are depends on all that was said before,
so a mask cannot be computed earlier than the token before it is known; but it can be while the model reads that token,
which takes far longer. `MaskAhead` does that.
"""

from aie_engine.constraints.ahead import ConstrainedAnswer, MaskAhead
from aie_engine.constraints.errors import ConstraintError, ConstraintsBusyError, ConstraintsUnavailableError
from aie_engine.constraints.matching import Constraint, ConstraintMaker, Mask, TokenMatcher
from aie_engine.constraints.spec import ConstraintKind, ConstraintSpec, check_constraint
from aie_engine.constraints.vocabulary import TokenSource

__all__ = [
    "ConstrainedAnswer",
    "Constraint",
    "ConstraintError",
    "ConstraintKind",
    "ConstraintMaker",
    "ConstraintSpec",
    "ConstraintsBusyError",
    "ConstraintsUnavailableError",
    "Mask",
    "MaskAhead",
    "TokenMatcher",
    "TokenSource",
    "check_constraint",
]
