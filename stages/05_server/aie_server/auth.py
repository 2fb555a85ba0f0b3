"""API keys: `Authorization: Bearer …`. With no keys configured everyone is let in, and is known by the address."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from aie_server.errors import UnauthorizedError

__all__ = ["ApiKeys"]


class ApiKeys:
    """Compares in constant time, and every key each time, so that timing says nothing about them."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys if key]

    @property
    def are_needed(self) -> bool:
        return bool(self._keys)

    def client_key(self, headers: Mapping[str, str], address: str, *, is_open: bool) -> str:
        """Who asks, for rate limits and logs: a digest of the key, or the address. Raises `UnauthorizedError` (401)."""
        if not self._keys:
            return address
        scheme, _, given = headers.get("authorization", "").partition(" ")
        offered = given.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""  # the bytes as sent
        if sum(hmac.compare_digest(offered, key) for key in self._keys):
            return "key-" + hashlib.sha256(offered).hexdigest()[:16]
        if is_open:
            return address
        raise UnauthorizedError(
            "An API key is needed: Authorization: Bearer KEY." if not offered else "This API key is not known."
        )
