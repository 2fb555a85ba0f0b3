"""Errors as KServe's and Triton's protocols have them: `{"error": sentence, "code": …}`, not OpenAI's object."""

from collections.abc import Callable

from aie_engine import AieError
from aie_server.errors import retry_after_header
from aie_server.http.messages import Handler, Request, Response, StreamingResponse, json_response

__all__ = ["spoken_in_v2"]


def spoken_in_v2(handler: Callable[[Request], Response]) -> Handler:
    """`handler`, whose errors are answered in that form, with their status."""

    def answer(request: Request) -> Response | StreamingResponse:
        try:
            return handler(request)
        except AieError as error:
            retry_after = retry_after_header(error)
            headers = {} if retry_after is None else {"Retry-After": retry_after}
            return json_response({"error": str(error), "code": error.code}, status=error.status, headers=headers)

    return answer
