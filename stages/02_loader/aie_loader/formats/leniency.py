"""What a parser refuses although the reference library reads it, and the name under which that is allowed.

A strict parser meets files that are wrong and yet in use. One big "ignore errors" switch would take every defence down
for the sake of one harmless oddity, so each difference has its own name. What is no member here is never let through:
sizes, offsets inside the file and limits are what keeps a reader safe.
"""

from collections.abc import Collection
from enum import StrEnum

from aie_tensor import InvalidInputError

__all__ = ["STRICT", "Leniency", "find_leniency", "remedy"]


class Leniency(StrEnum):
    """One way in which a file may break its format and still be read."""

    DUPLICATE_KEYS = "duplicate-keys"  # safetensors: a name twice in the header; the last one counts
    UNKNOWN_FIELDS = "unknown-fields"  # safetensors: fields of a tensor besides dtype, shape and data_offsets
    NULL_METADATA = "null-metadata"  # safetensors: `"__metadata__": null`
    HEADER_SPACE = "header-space"  # safetensors: white space before the header's first brace
    UNALIGNED_TENSORS = "unaligned-tensors"  # GGUF: a tensor that does not start at a multiple of the alignment
    SHARED_TENSORS = "shared-tensors"  # GGUF: tensors that lie over each other
    HOLES = "holes"  # GGUF, zip: bytes between tensors or archive members that belong to nobody
    TRAILING_BYTES = "trailing-bytes"  # GGUF, npy: bytes after the last tensor
    OTHER_MEMBERS = "other-members"  # npz: members of the archive that are no arrays; they are passed over
    LARGE_EXPANSION = "large-expansion"  # npz: compressed arrays of far more bytes than the file has
    MISSING_TENSORS = "missing-tensors"  # shards: the index promises tensors that its files do not hold


STRICT: Collection[Leniency] = frozenset()


def find_leniency(names: Collection[str]) -> Collection[Leniency]:
    """The members of these names. InvalidInputError for an unknown one, listing the known."""
    known = {str(member) for member in Leniency}
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"there is no difference named {name!r} to be lenient about; known are {', '.join(sorted(known))}",
                param="lenient",
            )
    return frozenset(map(Leniency, names))


def remedy(leniency: Leniency) -> str:
    """The last part of an error's sentence: how to read such a file all the same."""
    return f"to read the file all the same, be lenient about '{leniency}' (--lenient {leniency})"
