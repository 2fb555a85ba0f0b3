"""The first lines of both generating endpoints: a JSON object, a known model, nothing that we would have to ignore."""

from collections.abc import Iterator
from contextlib import contextmanager

from aie_server.api.fields import Fields
from aie_server.api.json_body import decode_object
from aie_server.api.unsupported import refuse_unsupported
from aie_server.http.messages import Request
from aie_server.leases import Lease
from aie_server.served import ModelTable

__all__ = ["begin", "lease_model"]


@contextmanager
def begin(request: Request, models: ModelTable) -> Iterator[tuple[Fields, Lease]]:
    """The fields, and a lease on the model for as long as the context is open. Raises `InvalidInputError`,
    `ModelNotFoundError` (404) or `UnsupportedFieldError`."""
    fields = Fields(decode_object(request.body))
    with lease_model(fields, models) as lease:
        refuse_unsupported(fields)
        yield fields, lease


def lease_model(fields: Fields, models: ModelTable) -> Lease:
    """The model that the field `model` names, or the first. Raises `ModelNotFoundError` (404)."""
    return models.lease(fields.text("model"))
