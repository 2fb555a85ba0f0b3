"""Every limit of the server in one place. A number that a client can reach is bounded here, or it is a bug."""

from dataclasses import dataclass, field

from aie_engine import InvalidInputError

__all__ = ["HttpLimits", "ServerConfig"]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one connection may send, how much and how slowly. Times are totals, not per read: a byte a second buys
    nothing."""

    max_request_line_bytes: int = 16 * 1024  # beyond: 414
    max_head_bytes: int = 32 * 1024  # request line and all headers; beyond: 431
    max_headers: int = 100  # beyond: 431
    max_body_bytes: int = 8 * 1024 * 1024  # beyond: 413, for a declared length before anything is read
    max_body_chunks: int = 16 * 1024  # of a chunked body; beyond: 413
    max_drain_bytes: int = 16 * 1024 * 1024  # read and thrown away after an early error, or the client would not see it
    idle_timeout_s: float = 75.0  # between two requests of a connection
    leaving_timeout_s: float = 1.0  # the same once the server is leaving: for a request that is on its way
    header_timeout_s: float = 10.0  # from the first byte of a request to its last header
    body_timeout_s: float = 30.0
    send_timeout_s: float = 20.0  # for one write; a reader slower than that loses its stream
    send_buffer_bytes: int = 256 * 1024  # what the kernel holds for a client that does not read
    linger_timeout_s: float = 1.0  # for the drain
    max_connections: int = 1024  # beyond: the oldest idle one ends; if all are busy, 503 from the accepting thread
    backlog: int = 1024  # connections that the kernel holds before they are accepted


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Frozen; built by whoever starts the server. Raises `InvalidInputError` naming a field that makes no sense."""

    http: HttpLimits = field(default_factory=HttpLimits)
    disconnect_poll_s: float = 0.1  # how often a waiting request looks whether its client is still there
    deadline_grace_s: float = 5.0  # the engine ends a request at its deadline; after this much more, the server does
    dead_engine_grace_s: float = 2.0  # a dead engine ends its requests itself; after this long, the server does
    max_step_age_s: float = 60.0  # requests are running but no step ended for so long: not healthy
    max_batch_age_s: float = 5.0  # no worker of a predictor is done with its batch after so long: not healthy, either
    max_choices: int = 64  # of one request: prompts × n
    max_messages: int = 2048  # of one chat request
    max_tokenize_chars: int = 1 << 20  # of one /tokenize request: seconds of one core at worst, and no gate asks first
    max_stop_strings: int = 16
    max_stop_chars: int = 256  # of one stop string
    max_stop_token_ids: int = 64
    max_bad_words: int = 64  # each of at most max_stop_chars
    max_logit_bias: int = 1024  # tokens
    max_priority: int = 100  # either way
    max_cache_salt_chars: int = 256
    max_top_logprobs: int = 20
    max_constraint_chars: int = 1 << 17  # of a schema, expression or grammar, and of all tools of a request together
    max_guided_choices: int = 1024  # texts of which an answer may be one
    max_tools: int = 128  # as OpenAI's API has it
    default_completion_tokens: int = 16  # as OpenAI's API has it
    max_default_chat_tokens: int | None = None  # chat without max_tokens; None: the rest of the context
    allowed_template_kwargs: tuple[str, ...] = ("date_string", "enable_thinking", "thinking")
    max_inputs: int = 2048  # texts, rows or images of one request to a predictor, as OpenAI's API has it
    max_input_chars: int = 1 << 20  # of one text; what the model cannot read of it is cut
    max_pair_chars: int = 1 << 23  # of all pairs of a cross-encoder, which reads the query anew with each document
    max_image_pixels: int = 1 << 25  # width × height of one image, checked before it is decoded
    max_request_pixels: int = 1 << 27  # of all images of a request, shared among them: each costs time to decode
    metrics_prefix: str = "aie_"
    slow_request_s: float | None = None  # whatever takes longer gets a line in the log that says where its time went
    log_every: int = 0  # a line in the log after so many batches of a model; 0: none

    def __post_init__(self) -> None:
        for name in (
            "max_choices", "max_messages", "default_completion_tokens", "max_inputs", "max_input_chars",
            "max_pair_chars", "max_image_pixels", "max_request_pixels", "max_constraint_chars", "max_guided_choices",
            "max_tools",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {getattr(self, name)}.", param=name)
        if self.log_every < 0:
            raise InvalidInputError(f"log_every must be 0 or more, not {self.log_every}.", param="log_every")
        if self.disconnect_poll_s <= 0:
            raise InvalidInputError("disconnect_poll_s must be above 0.", param="disconnect_poll_s")
