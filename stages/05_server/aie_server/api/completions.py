"""POST /v1/completions: one prompt or several, `n` choices for each, with the prompt before them if so wished."""

from aie_server.api.answer import Answer
from aie_server.api.choices import parse_fanout
from aie_server.api.endpoint import begin
from aie_server.api.generation import Generation, GenerationContext
from aie_server.api.prompts import check_context, completion_prompts, cut_prompt, parse_truncation
from aie_server.api.sampling import parse_max_tokens, parse_output_options, parse_sampling, parse_stream_options
from aie_server.api.structured import parse_form
from aie_server.api.wire import Envelope
from aie_server.http.messages import Request, Response, StreamingResponse
from aie_server.served import ModelTable

__all__ = ["CompletionsEndpoint"]


class CompletionsEndpoint:
    """Prompts in, choices for each, whole or as events."""

    def __init__(self, models: ModelTable, context: GenerationContext) -> None:
        self._models = models
        self._context = context

    def __call__(self, request: Request) -> Response | StreamingResponse:
        config = self._context.config
        with begin(request, self._models) as (fields, lease):
            model = lease.model
            stream = parse_stream_options(fields)
            logprobs = fields.integer("logprobs", low=0, high=config.max_top_logprobs)
            echo = fields.flag("echo", False)
            max_tokens = parse_max_tokens(fields, low=0 if echo else 1)
            output = parse_output_options(
                fields, config, with_logprobs=logprobs is not None, echo=echo, without_answer=max_tokens == 0
            )
            sampling_for = parse_sampling(fields, config, model, logprobs=logprobs, scores_prompt=echo)
            fanout = parse_fanout(fields, config)
            keep = parse_truncation(fields)
            form = parse_form(fields, config)
            generation = Generation(self._context, lease.share(), request, output)
            with generation.admitted():
                prompts = [cut_prompt(prompt, keep) for prompt in completion_prompts(fields, model, config)]
                longest = max(len(prompt) for prompt in prompts)
                shortest = min(len(prompt) for prompt in prompts)
                if max_tokens is None:  # a default must not be the reason for a refusal
                    max_tokens = min(config.default_completion_tokens, max(1, model.max_seq_len - longest))
                check_context(model, shortest, None, param="prompt")
                max_tokens = max(1, max_tokens)  # for an echo alone, a token is computed and dropped
                check_context(model, longest, max_tokens, param="prompt")
                generation.submit(prompts, sampling_for(max_tokens), None if form is None else form.spec, fanout)
            return Answer(
                Envelope.new("completion", model.name),
                generation,
                model.text.tokenizer,
                stream,
                logprobs is not None,
                with_prompt_logprobs=fields.has("prompt_logprobs"),
                with_token_ids=output.with_token_ids,
            ).respond()
