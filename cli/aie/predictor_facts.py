"""What `aie load` says of a model that answers at once: an encoder, a classifier, an image model, a graph of a file."""

from math import prod
from typing import TYPE_CHECKING

from aie.console import format_bytes

if TYPE_CHECKING:
    from aie_loader import Graph, Predictor

__all__ = ["predictor_facts"]

_STEP_TOKENS = 512
_SHOWN_LABELS = 8


def predictor_facts(loaded: "Predictor", fused: "Graph") -> dict[str, object]:
    """Name → figure, in the order in which they are printed."""
    from aie_loader.architectures.encoders import EncoderConfig

    config = loaded.config
    facts: dict[str, object] = {
        "file": str(loaded.path),
        "format": loaded.format,
        "architecture": loaded.architecture,
        "parameters": f"{sum(prod(weight.shape) for weight in loaded.graph.weights.values()):,}",
    }
    if isinstance(config, EncoderConfig):
        facts |= {
            "layers": config.num_layers,
            "hidden": config.hidden_size,
            "feed-forward": config.intermediate_size,
            "heads": f"{config.num_heads}, {config.head_dim} wide",
            "vocabulary": config.vocab_size,
        }
    if loaded.max_length is not None:
        facts["longest text"] = f"{loaded.max_length} tokens, special ones included"
    if loaded.image is not None:
        facts["image"] = f"{loaded.image.channels} × {loaded.image.height} × {loaded.image.width}"
    facts["inputs"] = _values(loaded.graph, loaded.graph.inputs)
    facts["output"] = f"{loaded.output.replace('_', ' ')}: {_values(loaded.graph, loaded.graph.outputs)}"
    if loaded.labels:
        more = f" and {len(loaded.labels) - _SHOWN_LABELS} more" if len(loaded.labels) > _SHOWN_LABELS else ""
        facts["labels"] = ", ".join(loaded.labels[:_SHOWN_LABELS]) + more
    facts["weights"] = format_bytes(loaded.weight_bytes)
    facts["graph"] = f"{len(loaded.graph.nodes)} nodes, {len(fused.nodes)} after the passes"
    of_what = f"{_STEP_TOKENS} tokens of one text" if "token_ids" in loaded.graph.inputs else "one item"
    facts[f"activations of {of_what}"] = _activations(fused)
    return facts


def _values(graph: "Graph", names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} [{', '.join(map(str, graph.shapes[name]))}]" for name in names)


def _activations(fused: "Graph") -> str:
    from aie_loader import bound_nbytes, lifetimes, plan_memory

    sizes = {size: 1 for shape in fused.shapes.values() for size in shape if isinstance(size, str)}
    lives = lifetimes(fused.sorted(), fused.outputs, bound_nbytes(fused, **{**sizes, "T": _STEP_TOKENS}))
    return (
        f"{format_bytes(plan_memory(lives).total_bytes)} as planned by liveness, "
        f"{format_bytes(sum(life.nbytes for life in lives))} if each value had its own place"
    )
