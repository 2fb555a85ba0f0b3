"""The first lines of both generating endpoints: a JSON object, a known model, nothing that we would have to ignore."""

from aie_server.api.fields import Fields
from aie_server.api.json_body import decode_object
from aie_server.api.unsupported import refuse_unsupported
from aie_server.http.messages import Request
from aie_server.served import ModelTable, ServedModel

__all__ = ["begin", "find_model"]


def begin(request: Request, models: ModelTable) -> tuple[Fields, ServedModel]:
    """Raises `InvalidInputError`, `ModelNotFoundError` (404) or `UnsupportedFieldError`."""
    fields = Fields(decode_object(request.body))
    model = find_model(fields, models)
    refuse_unsupported(fields)
    return fields, model


def find_model(fields: Fields, models: ModelTable) -> ServedModel:
    """The model that the field `model` names, or the first. Raises `ModelNotFoundError` (404)."""
    return models.find(fields.text("model"))
