"""What the tokenizers library raises, as errors of ours.

It raises bare `Exception` for what it refuses. For a tokenizer.json that is inconsistent in a way that it does not
check, its Rust code panics: that arrives as an exception that is no `Exception`, and would end the thread it meets.
"""

import contextlib
from collections.abc import Iterator

from aie_loader.errors import TokenizerError
from aie_tensor import InvalidInputError

__all__ = ["library_errors"]


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Around calls of the library: `TokenizerError` beginning with `what`, and `InvalidInputError` for text that is no
    valid Unicode. Other exceptions that are no `Exception`, such as KeyboardInterrupt, pass."""
    try:
        yield
    except (TokenizerError, InvalidInputError):
        raise
    except TypeError as error:
        raise InvalidInputError("the text is not valid Unicode: it has a lone surrogate") from error
    except OverflowError as error:
        raise InvalidInputError("token ids must lie between 0 and 4294967295") from error
    except BaseException as error:
        # The class of a panic cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise TokenizerError(f"{what}: {reason}") from error
        raise
