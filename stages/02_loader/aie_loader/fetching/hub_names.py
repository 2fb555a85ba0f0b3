"""Names of models on a hub: `org/name`, `org/name@revision`, and for one GGUF file of many `org/name:Q4_K_M`.

What follows the colon is a file's name or the kind of quantization in it. Names are the hub's own, with the characters
that it allows; so none can point out of the cache.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from aie_loader.errors import ModelNotFoundError

__all__ = ["HubName", "gguf_models", "pick_gguf"]

_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./+-]+))?(?::(?P<selection>[\w./+ -]+))?", re.ASCII)
_NOT_A_REPO = (".git", ".ipynb", ".gguf", ".safetensors", ".bin", ".npz", ".pt", ".pth", ".json")  # more like a path
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")  # of one model in several files, before the suffix
_QUANT = re.compile(r"(?:^|[-_./])((?:i?q\d\w*|tq\d\w*|mxfp4\w*|bf16|fp?16|fp?32))$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HubName:
    """One model on a hub."""

    repo: str  # org/name
    revision: str | None = None  # branch, tag or commit; None: the hub's main branch
    selection: str | None = None  # which GGUF file

    @classmethod
    def parse(cls, text: str) -> "HubName | None":
        """None for a text that cannot be the name of a model on a hub."""
        match = _NAME.fullmatch(text)
        if match is None or ".." in text or "--" in match["repo"]:
            return None
        if match["repo"].lower().endswith(_NOT_A_REPO):
            return None
        return cls(match["repo"], match["revision"], match["selection"])

    @classmethod
    def from_folder_name(cls, text: str) -> "HubName | None":
        """The inverse of `folder_name`."""
        repo, at, revision = text.partition("@")
        return cls.parse(repo.replace("--", "/", 1) + at + unquote(revision))

    @property
    def folder_name(self) -> str:
        """One folder for all files of one revision."""
        revision = "" if self.revision is None else f"@{quote(self.revision, safe='')}"
        return self.repo.replace("/", "--") + revision

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return self.repo + revision + ("" if self.selection is None else f":{self.selection}")


def gguf_models(names: Iterable[str]) -> dict[str, list[str]]:
    """The GGUF models among files: name of the first file → all its files in order. Vision parts are left out."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        base = name.rpartition("/")[2].lower()
        if not base.endswith(".gguf") or base.startswith("mmproj"):
            continue
        split = _SPLIT.search(name[: -len(".gguf")])
        first = name if split is None else f"{name[: split.start()]}-00001-of-{split[2]}.gguf"
        models.setdefault(first, []).append(name)
    return models


def pick_gguf(names: Iterable[str], name: HubName) -> list[str]:
    """The files of the GGUF model that `name` means. Raises `ModelNotFoundError`, which lists what there is."""
    models = gguf_models(names)
    if name.selection is None:
        found = list(models)
    elif name.selection.lower().endswith(".gguf"):
        found = [first for first, files in models.items() if _is_file(name.selection, files)]
    else:
        found = [first for first in models if _has_quant(first, name.selection)]
    if len(found) == 1:
        return models[found[0]]
    choices = ", ".join(sorted({_label(first) for first in models})) or "none"
    repo = HubName(name.repo, name.revision)
    if name.selection is None:
        what = f"{repo} holds {len(models)} GGUF models; name one as {repo}:CHOICE"
    else:
        what = f"{repo} has {'several GGUF models' if found else 'no GGUF model'} for {name.selection!r}"
    raise ModelNotFoundError(f"{what} (choices: {choices})", param="model")


def _is_file(selection: str, files: list[str]) -> bool:
    return any(selection in {file, file.rpartition("/")[2]} for file in files)


def _stem(first: str) -> str:
    return _SPLIT.sub("", first[: -len(".gguf")])


def _has_quant(first: str, selection: str) -> bool:
    """Whether the name ends in it, or the folder is called so: the file, as `-Q4_K_M.gguf` or `.Q4_K_M.gguf`."""
    folder, _, base = _stem(first).lower().rpartition("/")
    wanted = selection.lower()
    if wanted in {base, folder}:
        return True
    separators = "-._" if _QUANT.fullmatch(wanted) else "-."
    return base.endswith(wanted) and base[-len(wanted) - 1] in separators


def _label(first: str) -> str:
    """The shortest way to name a model: its quantization, else its file."""
    quant = _QUANT.search(_stem(first))
    return quant[1] if quant else first
