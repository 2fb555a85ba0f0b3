"""POST /tokenize and /detokenize, in vLLM's shapes."""

from typing import Final

from aie_server.api.endpoint import lease_model
from aie_server.api.fields import Fields
from aie_server.api.json_body import decode_object
from aie_server.api.prompts import chat_prompt
from aie_server.api.tools import parse_tools
from aie_server.config import ServerConfig
from aie_server.http.messages import Request, Response, json_response
from aie_server.served import ModelTable

__all__ = ["DetokenizeEndpoint", "TokenizeEndpoint"]

_MAX_TOKENS: Final = 1 << 20


class TokenizeEndpoint:
    """`{model?, prompt | messages, add_special_tokens, add_generation_prompt, return_token_strs}` →
    `{count, max_model_len, tokens, token_strs}`."""

    def __init__(self, models: ModelTable, config: ServerConfig) -> None:
        self._models = models
        self._config = config

    def __call__(self, request: Request) -> Response:
        fields = Fields(decode_object(request.body))
        with lease_model(fields, self._models) as lease:
            model = lease.model
            wants_strings = fields.flag("return_token_strs", False)
            if fields.has("messages"):
                tokens = chat_prompt(
                    fields, model, self._config, parse_tools(fields, self._config, model.text.chat_template)
                )
            else:
                text = fields.text("prompt")
                if text is None:
                    raise fields.error("prompt", "a string, or messages a list of messages")
                if len(text) > self._config.max_tokenize_chars:
                    raise fields.error(
                        "prompt", f"at most {self._config.max_tokenize_chars} characters, not {len(text)}"
                    )
                # No context check: people count long documents here, to cut them into pieces.
                add_special_tokens = fields.flag("add_special_tokens", True)
                tokens = tuple(model.text.tokenizer.encode(text, add_special_tokens=add_special_tokens))
            token_text = model.text.tokenizer.token_text
            return json_response(
                {
                    "count": len(tokens),
                    "max_model_len": model.max_seq_len,
                    "tokens": tokens,
                    "token_strs": [token_text(token) for token in tokens] if wants_strings else None,
                }
            )


class DetokenizeEndpoint:
    """`{model?, tokens}` → `{prompt}`; special tokens are shown, as vLLM does."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models

    def __call__(self, request: Request) -> Response:
        fields = Fields(decode_object(request.body))
        with lease_model(fields, self._models) as lease:
            model = lease.model
            tokens = fields.token_ids("tokens", vocab_size=model.engine.info.vocab_size, max_length=_MAX_TOKENS)
            if tokens is None:
                raise fields.error("tokens", "a list of token ids")
            return json_response({"prompt": model.text.tokenizer.decode(list(tokens), skip_special_tokens=False)})
