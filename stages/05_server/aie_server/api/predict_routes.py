"""The routes of models that answer at once."""

from collections.abc import Iterator

from aie_server.api import infer_v2
from aie_server.api.classify import ClassifyEndpoint
from aie_server.api.embeddings import EmbeddingsEndpoint
from aie_server.api.predict import PREFIX, PredictEndpoint
from aie_server.api.predictions import PredictionContext
from aie_server.api.rerank import RerankEndpoint
from aie_server.api.status import HealthEndpoint, aie_version
from aie_server.http import Route

__all__ = ["predict_routes"]


def predict_routes(context: PredictionContext, health: HealthEndpoint, *, has_repository: bool) -> Iterator[Route]:
    """has_repository: whether models can be loaded and unloaded, which the protocol calls an extension."""
    extensions = ["binary_tensor_data", *(["model_repository"] if has_repository else [])]
    model = f"{infer_v2.PREFIX}{{model}}"  # and its versions: the name reaches up to what follows
    yield Route("POST", "/v1/embeddings", EmbeddingsEndpoint(context), "a vector for each text")
    yield Route("POST", "/v1/rerank", RerankEndpoint(context), "documents by how well they answer a query")
    yield Route("POST", "/classify", ClassifyEndpoint(context), "labels of texts")
    yield Route("POST", f"{PREFIX}{{model}}", PredictEndpoint(context), "texts, rows or images through a model")
    yield Route("GET", "/v2", infer_v2.server_endpoint(aie_version(), extensions), "open inference protocol")
    live = infer_v2.health_endpoint("live", lambda: True)
    ready = infer_v2.health_endpoint("ready", health.is_well)
    yield Route("GET", "/v2/health/live", live, "200 while the server answers", is_open=True)
    yield Route("GET", "/v2/health/ready", ready, "200 when a request would be served", is_open=True)
    yield Route("POST", f"{model}/infer", infer_v2.infer_endpoint(context), "tensors through a model")
    yield Route("GET", f"{model}/ready", infer_v2.ready_endpoint(context), "200 when it takes requests")
    yield Route("GET", model, infer_v2.metadata_endpoint(context), "what it takes and gives")
