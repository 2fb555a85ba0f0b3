"""HTTP/1.1 on the standard library's server: sockets, framing, routing. It knows nothing of models.

framing     bytes → RequestHead, strictly
reader      socket → bytes, with total deadlines
body        by length or chunked, with limits
leaving     to all connections: the server is leaving
messages    what handlers get and return
router      path and method → handler
connection  the loop of one connection
listener    accept loop, threads, cap
"""

from aie_server.http.connection import Application, Connection
from aie_server.http.framing import FramingError, RequestHead, parse_head
from aie_server.http.listener import Listener
from aie_server.http.messages import ClientGoneError, Handler, Request, Response, StreamingResponse, json_response
from aie_server.http.router import Route, Router

__all__ = [
    "Application",
    "ClientGoneError",
    "Connection",
    "FramingError",
    "Handler",
    "Listener",
    "Request",
    "RequestHead",
    "Response",
    "Route",
    "Router",
    "StreamingResponse",
    "json_response",
    "parse_head",
]
