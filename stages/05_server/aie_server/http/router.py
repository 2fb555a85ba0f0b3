"""Which handler answers which path and method.

A path is matched as it stands. One with a name in braces, such as `/v1/models/{model}`, stands for everything that
begins and ends like it: the only pattern an API of this kind needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from aie_server.errors import RouteError
from aie_server.http.framing import RequestHead
from aie_server.http.messages import Handler, Request, Response

__all__ = ["Route", "Router"]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` also labels the metrics, so that a scan of a million paths makes no million time series."""

    method: str
    path: str
    handler: Handler
    summary: str
    is_open: bool = False  # answers without an API key


class Router:
    """Raises `RouteError` for what it does not know: 404 for the path, 405 with Allow for the method."""

    def __init__(self) -> None:
        self._routes: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[str, str, dict[str, Route]]] = []  # what comes before and after the name in braces

    def __iter__(self) -> Iterator[Route]:
        for methods in self._routes.values():
            yield from methods.values()

    def add(self, route: Route) -> None:
        methods = self._routes.get(route.path)
        if methods is None:
            methods = self._routes[route.path] = {}
            start, brace, rest = route.path.partition("{")
            if brace:
                self._patterns.append((start, rest.partition("}")[2], methods))
        assert route.method not in methods, f"{route.method} {route.path} has a handler already"
        methods[route.method] = route

    def find(self, head: RequestHead) -> Route:
        """HEAD is answered by GET's handler (the connection leaves the body out), OPTIONS by the list of methods."""
        if head.method == "OPTIONS" and head.path == "*":
            return Route("OPTIONS", "*", _options("GET, HEAD, POST, OPTIONS"), "", is_open=True)
        methods = self._routes.get(head.path) or self._by_pattern(head.path)
        if methods is None:
            raise RouteError(
                f"There is no route {head.path[:200]}; GET / lists those that exist.",
                status=404,
                code="route_not_found",
            )
        allow = self._allow(methods)
        if head.method == "OPTIONS":
            return Route("OPTIONS", head.path, _options(allow), "", is_open=True)
        route = methods.get("GET" if head.method == "HEAD" else head.method)
        if route is None:
            raise RouteError(
                f"{head.path} does not take {head.method[:20]}; it takes {allow}.",
                status=405,
                code="method_not_allowed",
                allow=allow,
            )
        return route

    def _by_pattern(self, path: str) -> dict[str, Route] | None:
        for start, end, methods in self._patterns:
            if path.startswith(start) and path.endswith(end) and len(path) > len(start) + len(end):
                return methods
        return None

    @staticmethod
    def _allow(methods: dict[str, Route]) -> str:
        names = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
        return ", ".join(names)


def _options(allow: str) -> Handler:
    def handler(_: Request) -> Response:
        return Response(b"", 204, headers={"Allow": allow})

    return handler
