"""Who holds memory, in words: a leak with a name ("kv of request r-812") beats an address."""

from dataclasses import dataclass, fields, replace

from aie_tensor.errors import InvalidInputError

__all__ = ["Owner", "checked_owner"]


@dataclass(frozen=True, slots=True)
class Owner:
    """What a piece of memory is for. Everything but `what` may be unknown; the ledger adds what it knows itself."""

    what: str = ""  # "kv", "activations", "weights of layer 3"; the same for all requests
    request_id: str = ""
    model: str = ""  # name and version
    worker: str = ""  # which process: "engine-0"
    stage: str = ""  # which package: "aie_engine"

    def __post_init__(self) -> None:
        for text in (self.what, self.request_id, self.model, self.worker, self.stage):
            if not isinstance(text, str):
                raise InvalidInputError(f"an owner is made of texts, not of {text!r}: convert it with str()")

    @classmethod
    def of(cls, owner: "Owner | str") -> "Owner":
        """Plain text is a `what`."""
        return cls(owner) if isinstance(owner, str) else owner

    def within(self, context: "Owner") -> "Owner":
        """This owner, with what it leaves open taken from `context`."""
        missing = {f.name: getattr(context, f.name) for f in fields(self) if not getattr(self, f.name)}
        return replace(self, **missing)

    def __str__(self) -> str:
        what = self.what or "unnamed"
        return f"{what} of request {self.request_id}" if self.request_id else what


def checked_owner(owner: object) -> Owner | str:
    """`owner`; InvalidInputError for anything else, which every later report would stumble over."""
    if isinstance(owner, (str, Owner)):
        return owner
    raise InvalidInputError(f"an owner is a text or an Owner, not {owner!r}", param="owner")
