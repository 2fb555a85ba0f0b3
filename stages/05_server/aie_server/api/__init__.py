"""The HTTP API: OpenAI's chat and completion endpoints with vLLM's extensions, tokenizing, models, health, metrics.

json_body    bytes → a JSON object, or 400
fields       one field of it at a time, or 400 naming the field
unsupported  fields that would change the answer and that this server cannot honour yet
sampling     fields → sampling and output options
prompts      prompts and messages → token ids, within the context
generation   token ids → engine → deltas, with admission, deadline, cancellation, metrics
wire         deltas → OpenAI's objects and server-sent events
chat, completions, tokenize, models, status   the endpoints
inputs       texts and token ids for models that answer at once, within the limits
predictions  items → batcher → outputs, with admission, deadline, cancellation, times
infer_wire   tensors of the open inference protocol, as JSON and as bytes
embeddings, rerank, classify, predict, infer_v2   their endpoints
"""

__all__: list[str] = []
