"""Where requests go."""

from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Endpoint"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server."""

    host: str
    port: int
    base_path: str  # "" or such as "/api"
    tls: bool
    api_key: str | None = None

    @property
    def url(self) -> str:
        """As `parse` reads it."""
        return f"http{'s' if self.tls else ''}://{self.authority}{self.base_path}"

    @property
    def authority(self) -> str:
        """As in a URL and in `Host`: an IPv6 address stands in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> "Endpoint":
        """From `http://host:port[/base]`, with or without a trailing `/v1`. Raises `InvalidInputError`."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError:  # half a bracket; a port that is none
            parts, port = urlsplit(""), -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            from aie_engine import InvalidInputError  # here, since it brings numpy with it

            raise InvalidInputError(f"--url is {url!r}; give something like http://127.0.0.1:8000.", param="url")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            from aie_engine import InvalidInputError

            raise InvalidInputError(
                "--api-key has line ends or other characters that no header can hold; is it read from a file?",
                param="api-key",
            )
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), path, tls, api_key)
