"""Why a request was not answered, in a few words: the same for the same fault, so that they can be counted."""

import asyncio
import json
import os
import socket
import ssl

__all__ = ["describe_error", "error_message", "http_error"]


def http_error(status: int, body: bytes) -> str:
    """What a status that is no answer means, in a line."""
    if 300 <= status < 400:
        return f"HTTP {status}: redirects are not followed"
    message = error_message(body)
    return f"HTTP {status}: {message}" if message else f"HTTP {status}"


def error_message(body: bytes) -> str:
    """The message inside OpenAI's error object, or the beginning of whatever came: a line that a terminal can show."""
    try:
        error = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body[:1000].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:200]


def describe_error(error: BaseException, *, is_begun: bool = True) -> str:
    """is_begun: whether an answer had begun."""
    if isinstance(error, asyncio.IncompleteReadError):
        return f"the connection was closed {'in mid-answer' if is_begun else 'before an answer'}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return _describe_os_error(error) if isinstance(error, OSError) else f"garbled answer ({error})"


def _describe_os_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there: {(error.reason or 'it failed').replace('_', ' ').lower()}"
    if not isinstance(error, socket.gaierror) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio's own text says it in Python
    return error.strerror or str(error) or type(error).__name__
