"""Output for terminals and files that cannot hold every character: what is drawn with lines and blocks is drawn with
letters and signs instead, and nothing is ever the end of the program that printed it."""

import codecs
import io
import sys

__all__ = ["NAME", "allow_plain_characters"]

NAME = "aie-plain"

_PLAIN = {
    "–": "-", "—": "-", "−": "-", "…": "..", "·": ";", "×": "x", "≤": "<=", "≥": ">=", "≈": "~", "±": "+-", "→": "->",
    "←": "<-", "◀": "<", "▶": ">", "σ": "s", "μ": "u", "µ": "u", "°": "", "√": "sqrt ",
    "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "✓": "ok", "✗": "x", "•": "*", "●": "*", "○": "o",
    "ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss",
}  # fmt: skip
_LINES = dict.fromkeys("─━═╌┄╴╶╸╺", "-") | dict.fromkeys("│┃║╎┆", "|") | dict.fromkeys("┌┐└┘├┤┬┴┼╞╡╪╭╮╰╯", "+")
_BLOCKS = dict(zip("▁▂▃▄▅▆▇█", "_.-:=+*#", strict=True)) | {"░": ".", "▒": ":", "▓": "#", "▏": "|", "▌": "#", "▐": "#"}
_KNOWN = _PLAIN | _LINES | _BLOCKS


def allow_plain_characters() -> None:
    """From now on, on standard output and standard error: in a locale without UTF-8 a character that it lacks becomes
    one or two that it has, or a question mark, and not an error."""
    codecs.register_error(NAME, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "backslashreplace"):
            stream.reconfigure(errors=NAME)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    told = "".join(_KNOWN.get(character, "?") for character in error.object[error.start : error.end])
    return told, error.end
