"""A look into a live server: GET /debug/memory, with one sentence for everything that can be in its way."""

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import quote

from aie.bench.client import Endpoint, describe_error, get_text
from aie_engine import EnvironmentLacksError, InvalidInputError
from aie_tensor.memdebug import snapshot_from_json

if TYPE_CHECKING:
    from aie_tensor.memdebug import MemorySnapshot

__all__ = ["fetch"]

_TIMEOUT_S = 30.0  # a snapshot of many blocks is written between two steps of a busy engine


def fetch(url: str, model: str | None, api_key: str | None) -> "dict[str, MemorySnapshot]":
    """Model → snapshot, of `model` or of all that the server has.

    Raises `EnvironmentLacksError` when nobody answers, and `InvalidInputError` when the answer is no `aie serve
    --memdebug`'s, or refuses.
    """
    endpoint = Endpoint.parse(url, api_key)
    path = "/debug/memory" + (f"?model={quote(model, safe='')}" if model else "")
    try:
        status, text = asyncio.run(get_text(endpoint, path, timeout_s=_TIMEOUT_S))
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        reason = describe_error(error, is_begun=False)
        raise EnvironmentLacksError(
            f"No server answers at {url}: {reason}. Start one with `aie serve --memdebug`."
        ) from None
    if status != 200:
        raise _refused(url, status, text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not document:
        raise _no_aie(url)
    return {str(name): snapshot_from_json(entry, name=f"the answer of {url}") for name, entry in document.items()}


def _refused(url: str, status: int, text: str) -> InvalidInputError:
    """The server's own sentence where it is one of ours: it names the remedy."""
    try:
        error = json.loads(text)["error"]
        message, code = str(error["message"]), str(error.get("code"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _no_aie(url)
    if status in (401, 403):
        return InvalidInputError(f"{url} asks for a key: {message} Give --api-key, or set AIE_API_KEY.")
    if code in ("route_not_found", "None"):
        return _no_aie(url)
    return InvalidInputError(f"{url} answers: {message}")


def _no_aie(url: str) -> InvalidInputError:
    return InvalidInputError(
        f"{url} has no /debug/memory; it is no server of aie, or an older one. Start one with `aie serve --memdebug`."
    )
