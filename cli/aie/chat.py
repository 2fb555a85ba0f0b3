"""`aie chat`: talk to a model in the terminal, without a server."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import note
from aie.engine_flags import Activations, Kernels, KVDtype, Lenient, Quantize, Threads
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie.local import LocalModel
    from aie_engine import SamplingParams

__all__ = ["chat", "register"]


def chat(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Alias, file or folder. [the default model]")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message; none leaves it to the model's template.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one answer.")] = 512,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token every time.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Draw from the smallest set with this much probability.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answers.")] = None,
    quantize: Quantize = None,
    kv_dtype: KVDtype = None,
    activations: Activations = None,
    lenient: Lenient = None,
    kernels: Kernels = None,
    threads: Threads = None,
) -> None:
    """Talk to a model. `/clear` starts over, `/exit` or Ctrl-D ends, Ctrl-C cuts an answer short."""
    from aie.local import local_model, sampling_of

    sampling = sampling_of(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=0, min_p=0.0, seed=seed)
    with local_model(
        model,
        kernels=kernels,
        threads=threads,
        quantize=quantize,
        lenient=lenient,
        kv_dtype=kv_dtype,
        activations=activations,
    ) as local:
        template = local.text.chat_template
        if template is None:
            raise InvalidInputError(f"{local.name} has no chat template; use `aie generate`.")
        first = [{"role": "system", "content": system}] if system else []
        messages: list[dict[str, str]] = list(first)
        note(f"{local.name} is listening. /clear starts over, /exit ends.")
        while (line := _ask()) is not None:
            if line == "/clear":
                messages = list(first)
                continue
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": _answer(local, template.render(messages), sampling)})


def _ask() -> str | None:
    """The next line that is not blank; None at the end."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return None
        if line == "/exit":
            return None
        if line:
            return line


def _answer(local: "LocalModel", prompt: str, sampling: "SamplingParams") -> str:
    pieces: list[str] = []

    def emit(text: str) -> None:
        pieces.append(text)
        print(text, end="", flush=True)

    try:
        local.stream(prompt, sampling, emit)
    except KeyboardInterrupt:
        pass  # the stream's context has cancelled the request; what came so far stays in the conversation
    except InvalidInputError as error:
        note(f"aie: {error} /clear starts over.")
    print()
    return "".join(pieces)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("chat", short_help="Talk to a model, without a server.")(chat)
