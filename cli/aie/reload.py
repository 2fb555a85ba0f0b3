"""`aie reload` and `aie unload`: another version of a model in a server that runs, without a request lost."""

import http.client
import json
from typing import Annotated
from urllib.parse import quote

import typer

from aie.bench.client import Endpoint, describe_error
from aie.console import note
from aie_engine import EnvironmentLacksError, InvalidInputError

__all__ = ["register", "reload", "unload"]

Url = Annotated[str, typer.Option(help="Where the server is.")]
ApiKey = Annotated[str | None, typer.Option(envvar="AIE_API_KEY", help="Key, if the server asks for one.")]
_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 900.0  # the largest models take minutes
_NOT_THE_CALLERS_FAULT = (500, 502, 503, 504, 507)


def reload(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Name that it is served under; none: list what there is.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Version to serve. [the newest]")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it serves, or until it is known why not.")] = True,
    url: Url = _URL,
    api_key: ApiKey = None,
) -> None:
    """Have a running `aie serve` load a version of a model beside the old one, check it, and put it in its place.

    Requests in flight end on the version they began with. If the new one is broken, does not fit or does not pass the
    check, the old one serves on, and this command says why (exit code 2, or 3 where it is not the version's fault).
    """
    endpoint = Endpoint.parse(url, api_key)
    if model is None:
        _print_index(endpoint, url)
        return
    note(f"{model}: loading {'the newest version' if version is None else f'version {version}'} …")
    parameters = {"wait": wait, **({} if version is None else {"version": version})}
    body = {"parameters": parameters}
    answer = _call(endpoint, url, "POST", f"/v2/repository/models/{quote(model, safe='')}/load", body)
    if not isinstance(answer, dict):
        raise _no_aie(url)
    if not wait:
        print(f"{model}: version {answer.get('version')} is being loaded; `aie reload` without a name shows its state.")
        return
    before = answer.get("previous_version")
    instead = "" if before is None else f", version {before} did until now"
    print(f"{model}: version {answer.get('version')} serves{instead} (loaded in {answer.get('load_s')} s)")


def unload(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name that it is served under.")],
    url: Url = _URL,
    api_key: ApiKey = None,
) -> None:
    """Have a running `aie serve` take a model away. Its memory goes when the requests in flight have ended."""
    endpoint = Endpoint.parse(url, api_key)
    _call(endpoint, url, "POST", f"/v2/repository/models/{quote(model, safe='')}/unload", {})
    print(f"{model}: unloaded")


def _print_index(endpoint: Endpoint, url: str) -> None:
    entries = _call(endpoint, url, "GET", "/v2/repository/index", None)
    if not isinstance(entries, list):
        raise _no_aie(url)
    rows = [(str(e.get("name")), str(e.get("version")), str(e.get("state")), str(e.get("reason"))) for e in entries]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]).rstrip())


def _call(endpoint: Endpoint, url: str, method: str, path: str, body: object) -> object:
    """The answer. Raises `EnvironmentLacksError` where nobody answers or the machine is at fault, `InvalidInputError`
    for what the server refuses, each with the server's own sentence."""
    kind = http.client.HTTPSConnection if endpoint.tls else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=_TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, endpoint.base_path + path, data, headers)
        response = connection.getresponse()
        status, text = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = describe_error(error) if isinstance(error, OSError) else str(error) or "it closed the connection"
        raise EnvironmentLacksError(f"No server answers at {url}: {reason}. Start one with `aie serve`.") from None
    finally:
        connection.close()
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_aie(url) from None
    if status < 400:
        return document
    said = document.get("error") if isinstance(document, dict) else None
    if isinstance(said, dict):  # from before the endpoint was reached: a missing key, an unknown route
        if said.get("code") == "route_not_found":
            raise _no_aie(url)
        said = said.get("message")
    message = f"{url} refuses ({status}): {said}"
    raise (EnvironmentLacksError if status in _NOT_THE_CALLERS_FAULT else InvalidInputError)(message)


def _no_aie(url: str) -> InvalidInputError:
    return InvalidInputError(f"{url} does not load models on request; is it a server of aie?")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("reload", short_help="Load another version of a model into a running server.")(reload)
    app.command("unload", short_help="Take a model away from a running server.")(unload)
