"""An engine in this process for commands that need no server, and text out of its tokens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aie.assemble import engine_config, find_model
from aie.console import note
from aie.settings import load_settings
from aie_engine import (
    AieError,
    EngineClient,
    GenerateRequest,
    InvalidInputError,
    LocalEngine,
    SamplingParams,
    TextModel,
    load_text_model,
)
from aie_loader import served_name

__all__ = ["Answer", "LocalModel", "local_model", "sampling_of"]


@dataclass(slots=True)
class Answer:
    """How a generation went, for the line below it."""

    num_prompt_tokens: int
    num_tokens: int
    finish_reason: str


@dataclass(slots=True)
class LocalModel:
    """A loaded model: engine, tokenizer, template."""

    name: str
    path: Path
    engine: EngineClient
    text: TextModel

    def stream(self, prompt: str, sampling: SamplingParams, emit: Callable[[str], None]) -> Answer:
        """Continues `prompt`, handing over text as it is certain. Raises `InvalidInputError` for an empty prompt, and
        `AieError` when the engine fails."""
        prompt_ids = tuple(self.text.tokenizer.encode(prompt))
        if not prompt_ids:
            raise InvalidInputError("The prompt is empty; give at least one character.", param="prompt")
        decoder = self.text.tokenizer.incremental()
        answer = Answer(len(prompt_ids), 0, "")
        with self.engine.submit(GenerateRequest("local", prompt_ids, sampling)) as stream:
            for event in stream:
                answer.num_tokens += len(event.token_ids)
                ids = event.token_ids[:-1] if event.stop_token_id is not None else event.token_ids
                emit(decoder.push(ids))
                if event.finish_reason is not None:
                    answer.finish_reason = event.finish_reason
                    emit(decoder.finish())
                if event.error is not None:
                    kind = InvalidInputError if event.error.status < 500 else AieError
                    raise kind(event.error.message)
        return answer


@contextmanager
def local_model(
    name: str | None,
    *,
    kernels: str | None,
    threads: int | None,
    quantize: str | None = None,
    lenient: Sequence[str] | None = None,
    max_batch_size: int = 1,
    memdebug: bool = False,
    kv_memory: str | None = None,
    kv_dtype: str | None = None,
    activations: str | None = None,
) -> Iterator[LocalModel]:
    """Loads a model into this process and unloads it at the end."""
    settings = load_settings(
        {
            "kernels": kernels,
            "threads": threads,
            "quantize": quantize,
            "lenient": tuple(lenient) if lenient else None,
            "max_batch_size": max_batch_size,
            "memdebug": memdebug or None,
            "kv_memory": kv_memory,
            "kv_dtype": kv_dtype,
            "activations": activations,
        }
    )
    path = find_model(name)
    shown = served_name(name) if name else served_name(path)
    engine = LocalEngine(engine_config(settings, path, shown), report=note)
    try:
        yield LocalModel(shown, path, engine, load_text_model(path, lenient=settings.lenient))
    finally:
        engine.close()


def sampling_of(
    *, max_tokens: int, temperature: float, top_p: float, top_k: int, min_p: float, seed: int | None
) -> SamplingParams:
    """Checked sampling parameters. Raises `InvalidInputError` naming the flag."""
    return SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
    ).validated()
