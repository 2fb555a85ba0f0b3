"""POST /v1/chat/completions."""

from dataclasses import replace

from aie_server.api.answer import Answer
from aie_server.api.choices import parse_fanout
from aie_server.api.endpoint import begin
from aie_server.api.fields import Fields
from aie_server.api.generation import Generation, GenerationContext
from aie_server.api.prompts import chat_prompt, check_context, cut_prompt, parse_truncation
from aie_server.api.sampling import parse_max_tokens, parse_output_options, parse_sampling, parse_stream_options
from aie_server.api.structured import parse_form
from aie_server.api.tools import parse_tools
from aie_server.api.wire import Envelope
from aie_server.config import ServerConfig
from aie_server.errors import UnsupportedFieldError
from aie_server.http.messages import Request, Response, StreamingResponse
from aie_server.served import ModelTable

__all__ = ["ChatEndpoint"]


class ChatEndpoint:
    """Messages in, answers out, whole or as events; an answer may call functions."""

    def __init__(self, models: ModelTable, context: GenerationContext) -> None:
        self._models = models
        self._context = context

    def __call__(self, request: Request) -> Response | StreamingResponse:
        config = self._context.config
        with begin(request, self._models) as (fields, lease):
            model = lease.model
            stream = parse_stream_options(fields)
            logprobs = _parse_logprobs(fields, config)
            output = parse_output_options(fields, config, with_logprobs=logprobs is not None)
            max_tokens = parse_max_tokens(fields)
            sampling_for = parse_sampling(fields, config, model, logprobs=logprobs)
            fanout = parse_fanout(fields, config)
            keep = parse_truncation(fields)
            if fields.flag("echo", False):
                raise UnsupportedFieldError("echo is for /v1/completions; here, leave it out.", param="echo")
            form = parse_form(fields, config)
            tools = parse_tools(fields, config, model.text.chat_template)
            constraint = None if form is None else form.spec
            if tools is not None:
                constraint = tools.constraint(form, model.text.tokenizer, config)
                if tools.format.has_special_marks(model.text.tokenizer):
                    output = replace(output, skip_special_tokens=False)
            generation = Generation(self._context, lease.share(), request, output)
            with generation.admitted():  # everything cheap has been checked; rendering and tokenizing come last
                prompt = cut_prompt(chat_prompt(fields, model, config, tools), keep)
                room = check_context(model, len(prompt), max_tokens, param="messages")
                if max_tokens is None and config.max_default_chat_tokens is not None:
                    room = min(room, config.max_default_chat_tokens)
                generation.submit([prompt], sampling_for(room), constraint, fanout)
            return Answer(
                Envelope.new("chat", model.name),
                generation,
                model.text.tokenizer,
                stream,
                logprobs is not None,
                None if tools is None else tools.reader,
                fields.has("prompt_logprobs"),
                output.with_token_ids,
            ).respond()


def _parse_logprobs(fields: Fields, config: ServerConfig) -> int | None:
    """Chat says `logprobs: true, top_logprobs: n`; the engine wants n, or None for none at all."""
    wanted = fields.flag("logprobs", False)
    top = fields.integer("top_logprobs", low=0, high=config.max_top_logprobs)
    if top and not wanted:
        raise fields.error("top_logprobs", "left out unless logprobs is true")
    return (top or 0) if wanted else None
