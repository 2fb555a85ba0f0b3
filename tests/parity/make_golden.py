"""Writes `tests/golden/parity/*.json`: small models of the reference library, with the logits that it computes.

    pip install torch transformers    # in an environment of its own; the test suite needs neither
    python tests/parity/make_golden.py [NAME …]

Each file holds the configuration as the library saves it, the name and shape of every tensor, an input and the outputs.
The weights are not kept: `made_up.py` makes them again.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from made_up import made_up

GOLDEN = Path(__file__).parent.parent / "golden" / "parity"
IDS = [3, 17, 60, 5, 5, 41, 2, 33, 58, 9, 12, 0, 27, 44, 63, 8, 19, 30, 1, 50]
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500.0}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0}
SHORT, LONG = [1.0, 1.1, 1.3, 1.6], [2.0, 3.0, 4.0, 5.0]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
            "original_max_position_embeddings": 32, "rope_theta": 10000.0}  # fmt: skip

DECODERS = {
    "llama": (transformers.LlamaConfig, {**SMALL}),
    "llama_biased": (transformers.LlamaConfig, {**SMALL, "attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "llama_3_scaled": (transformers.LlamaConfig, {**SMALL, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_yarn": (transformers.LlamaConfig, {**SMALL, "rope_parameters": YARN}),
    "llama_linear": (
        transformers.LlamaConfig,
        {**SMALL, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}},
    ),
    "mistral": (transformers.MistralConfig, {**SMALL, "sliding_window": 6, "head_dim": 16}),
    "qwen2": (transformers.Qwen2Config, {**SMALL}),
    "qwen2_windows": (
        transformers.Qwen2Config,
        {**SMALL, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": (transformers.Qwen3Config, {**SMALL, "head_dim": 16}),
    "gemma2": (
        transformers.Gemma2Config,
        {**SMALL, "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24, "num_hidden_layers": 3,
         "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {**SMALL, "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24, "num_hidden_layers": 7},
    ),
    "phi3": (transformers.Phi3Config, {**SMALL, "sliding_window": 7, "pad_token_id": 0}),
    "phi3_longrope": (transformers.Phi3Config, {**SMALL, "rope_parameters": LONGROPE, "pad_token_id": 0,
                                                "original_max_position_embeddings": 32}),
    "gpt2": (
        transformers.GPT2Config,
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "gpt_neox": (
        transformers.GPTNeoXConfig,
        {**{k: v for k, v in SMALL.items() if "key_value" not in k}, "rotary_pct": 0.5},
    ),
    "gpt_neox_serial": (
        transformers.GPTNeoXConfig,
        {**{k: v for k, v in SMALL.items() if "key_value" not in k}, "use_parallel_residual": False,
         "hidden_act": "gelu_new"},
    ),
}  # fmt: skip


def fill(model: torch.nn.Module) -> dict[str, list[int]]:
    """Puts made-up numbers into every tensor of the model's checkpoint; gives names and shapes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # the names in a checkpoint differ from those of the modules
        from safetensors.torch import load_file, save_file

        path = Path(folder) / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
        filled = {name: torch.from_numpy(made_up(name, tuple(shape))) for name, shape in shapes.items()}
        save_file(filled, path, metadata={"format": "pt"})
        again = type(model).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
        model.load_state_dict(again.state_dict())
    return shapes


def decoder(name: str) -> dict[str, object]:
    kind, settings = DECODERS[name]
    config = kind(**settings, attn_implementation="eager", bos_token_id=1, eos_token_id=2)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    shapes = fill(model)
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0]
    return {"config": json.loads(config.to_json_string()), "tensors": shapes, "ids": IDS, "logits": rounded(logits)}


def rounded(values: torch.Tensor) -> list[list[float]]:
    return [[float(np.format_float_positional(np.float32(v), unique=True)) for v in row] for row in values.numpy()]


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or DECODERS:
        record = {"library": f"transformers {transformers.__version__}, torch {torch.__version__}", **decoder(name)}
        (GOLDEN / f"{name}.json").write_text(json.dumps(record) + "\n")
        print(name, len(record["tensors"]), "tensors")


if __name__ == "__main__":
    main()
