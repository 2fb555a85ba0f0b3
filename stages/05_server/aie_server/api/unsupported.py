"""Fields of OpenAI's and vLLM's APIs that this server cannot honour yet.

Ignoring them would give an answer that looks right and is not what was asked for. So a value that asks for something
is refused by name, and a value that asks for nothing (the API's own default) passes. Fields that change nothing in
the answer's meaning (`user`, `metadata`, `store`, `service_tier`, …) and fields nobody has heard of are ignored, as
OpenAI's clients expect.
"""

from collections.abc import Mapping
from typing import Final

from aie_server.api.fields import Fields
from aie_server.errors import UnsupportedFieldError

__all__ = ["refuse_unsupported"]

# field → values that ask for nothing
_HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "suffix": ("",),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "logits_processors": ([],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "chat_template": (),
    "documents": ([],),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}


def refuse_unsupported(fields: Fields) -> None:
    """Raises `UnsupportedFieldError` naming the first field that asks for what we do not do."""
    for field, harmless in _HARMLESS.items():
        value = fields.get(field)
        if value is None or (value in harmless and isinstance(value, bool) == isinstance(harmless[0], bool)):
            continue
        raise UnsupportedFieldError(f"{field} with this value is not supported yet; leave it out.", param=field)
