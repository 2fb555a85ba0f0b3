"""The open inference protocol over gRPC, for clients such as Triton's: off unless a port is given.

Layout, each line built on those above it:

    wire        varints, tags, lengths
    schema      messages as tables of fields: decode, encode
    protocol    the tables of this protocol
    tensors     ModelInfer's tensors, in and out
    service     the methods
    slow        calls whose message does not come
    listener    the port, by the package grpcio (an extra)
"""

from aie_server.grpc.listener import GrpcListener, load_grpc
from aie_server.grpc.service import InferenceService

__all__ = ["GrpcListener", "InferenceService", "load_grpc"]
