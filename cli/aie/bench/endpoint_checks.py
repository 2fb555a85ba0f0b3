"""Options that contradict the endpoint that is asked: a mix, plain HTTP, models that answer at once.

Each function raises `InvalidInputError` that names the option and what to do.
"""

from typing import TYPE_CHECKING

from aie.bench.lengths_file import PREFIX
from aie.bench.mix import GENERATES, NEED_A_MODEL
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie.bench.options import BenchOptions

__all__ = ["check_at_once", "check_http", "check_mix", "check_parts_of_slo"]


def check_mix(options: "BenchOptions") -> None:
    """Before anything else: the rest asks what the parts are."""
    if options.mix is None:
        if options.is_mix:
            raise InvalidInputError("--endpoint mix needs its parts; give them with --mix alone.", param="endpoint")
        return
    if not options.is_mix:
        raise InvalidInputError("--mix names the endpoints; leave --endpoint out.", param="mix")
    taken = {
        "--model": options.model,
        "--trace": options.trace,
        "--turns": options.turns > 1,
        "--engine": options.engine,
    }
    for flag, value in taken.items():
        if value:
            raise InvalidInputError(f"{flag} does not go with --mix; leave it out.", param="mix")
    for part in options.parts:
        if options.url is None and part.endpoint in NEED_A_MODEL and part.model is None:
            raise InvalidInputError(
                f"--mix needs the model of {part.endpoint}, as in {part.endpoint}:NAME={part.share:g}.", param="mix"
            )


def check_http(options: "BenchOptions") -> None:
    if "http" not in options.endpoints:
        asked = {
            "--path": options.path,
            "--method": options.method,
            "--body": options.body,
            "--header": options.headers,
        }
        for flag, value in asked.items():
            if value:
                raise InvalidInputError(f"{flag} is for plain HTTP; give --endpoint http with it.", param=flag[2:])
        return
    if options.api_key is not None and any(one.lower().startswith("authorization:") for one in options.headers):
        raise InvalidInputError(
            "--header Authorization and --api-key (AIE_API_KEY) say the same; give one.", param="header"
        )
    if options.is_mix:
        return
    if options.url is None:
        raise InvalidInputError("--endpoint http needs the server, as in --url http://127.0.0.1:8080.", param="url")
    taken = {"--model": options.model, "--lengths": options.lengths, "--input-tokens": options.input_tokens}
    for flag, value in taken.items():
        if value:
            raise InvalidInputError(f"{flag} is for models; plain HTTP sends --path and --body as they are.")


def check_parts_of_slo(options: "BenchOptions") -> None:
    """`--slo …@PART` names parts of a mix, and asks of each what it has."""
    for limit in () if options.promise is None else options.promise.limits:
        meant = [part for part in options.parts if limit.is_of(part.label)]
        if limit.part is not None and not meant:
            known = ", ".join(part.label for part in options.parts)
            raise InvalidInputError(
                f"--slo {limit} is of a part that --mix has not: it has {known}."
                if known
                else f"--slo {limit} is of a part of a mix; give --mix, or leave @{limit.part} out.",
                param="slo",
            )
        if limit.part is not None and limit.metric != "e2e" and not any(part.endpoint in GENERATES for part in meant):
            raise InvalidInputError(
                f"--slo {limit} is about tokens, and {limit.part} answers in one piece; limit its e2e.", param="slo"
            )


def check_at_once(options: "BenchOptions") -> None:
    if options.url is None and options.model is None and not options.is_mix:
        raise InvalidInputError(
            f"--endpoint {options.endpoint} needs a model that answers at once; name one, such as --model minilm-l6.",
            param="model",
        )
    if options.pairs_path is not None:
        raise InvalidInputError(f"--lengths {PREFIX}PATH is for models that generate text, not for {options.endpoint}.")
    for flag, value in {"--trace": options.trace, "--shared-prefix": options.shared_prefix}.items():
        if value:
            raise InvalidInputError(f"{flag} is for models that generate text, not for {options.endpoint}.")
    if options.leaving is not None and options.leaving.after > 0:
        raise InvalidInputError(
            f"--cancel {options.cancel} counts tokens, and an answer in one piece has none to count; "
            f"{options.leaving.share:g}@0 hangs up when the request has been sent.",
            param="cancel",
        )
    if options.promise is not None and any(limit.metric != "e2e" for limit in options.promise.limits):
        raise InvalidInputError(
            f"--slo {options.slo} is about tokens; an answer in one piece has an end-to-end time, as in e2e_p99<50ms.",
            param="slo",
        )
