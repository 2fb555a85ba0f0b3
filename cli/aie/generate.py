"""`aie generate`: continue a prompt in the terminal, without a server."""

import sys
import time
from typing import Annotated

import typer

from aie.console import note
from aie.engine_flags import Activations, Kernels, KVDtype, Lenient, Quantize, Threads
from aie_engine import InvalidInputError

__all__ = ["generate", "register"]


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; `-` or none reads standard input.")] = None,
    model: Annotated[str | None, typer.Option(help="Alias, file or folder. [the default model]")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to write.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token every time.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draw from the smallest set with this much probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest; 0 is off.")] = 0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens below this share of the likeliest one's probability.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")] = False,
    quantize: Quantize = None,
    kv_dtype: KVDtype = None,
    activations: Activations = None,
    lenient: Lenient = None,
    kernels: Kernels = None,
    threads: Threads = None,
) -> None:
    """Continue a prompt with a model loaded into this process. The text goes to standard output as it is written."""
    from aie.local import local_model, sampling_of

    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            note("Type the text to continue; Ctrl-D on a line of its own ends it.")
        prompt = sys.stdin.read()
    sampling = sampling_of(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed
    )
    if not prompt:
        raise InvalidInputError("The prompt is empty; give at least one character.", param="prompt")
    with local_model(
        model,
        kernels=kernels,
        threads=threads,
        quantize=quantize,
        lenient=lenient,
        kv_dtype=kv_dtype,
        activations=activations,
    ) as local:
        if chat:
            template = local.text.chat_template
            if template is None:
                raise InvalidInputError(f"{local.name} has no chat template; leave out --chat.", param="chat")
            prompt = template.render([{"role": "user", "content": prompt}])
        started_s = time.perf_counter()
        answer = local.stream(prompt, sampling, lambda text: print(text, end="", flush=True))
        took_s = time.perf_counter() - started_s
        print()
        note(
            f"[{answer.num_prompt_tokens} prompt + {answer.num_tokens} new tokens in {took_s:.2f} s, "
            f"{local.engine.info.kernels} kernels, ended by {answer.finish_reason}]"
        )


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("generate", short_help="Continue a prompt, without a server.")(generate)
