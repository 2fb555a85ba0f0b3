"""What can be wrong with a model, a file or a graph.

InvalidInputError                    400  exit 2   (from aie_tensor)
├── ModelFileError                   invalid_model_file       a file is not what it claims to be
│   ├── TruncatedFileError           truncated_model_file     it ends before its own header says so
│   ├── MalformedHeaderError         malformed_model_header   it breaks a named rule of its format
│   ├── UnsafePickleError            unsafe_pickle            it asks for code to be run; nothing of it was
│   ├── UnsupportedTensorTypeError   unsupported_tensor_type  a tensor has a type that aie cannot read
│   ├── TensorShapeError             wrong_tensor_shape       a tensor's shape contradicts the configuration
│   ├── MissingTensorError           missing_tensor           the graph needs a tensor that is not there
│   └── MissingFileError             missing_model_file       a path, or a part of a model folder, is not there
├── UnsupportedModelError            unsupported_model        a sound file, but a feature aie does not have yet
│   └── UnknownArchitectureError     unknown_architecture
├── TokenizerError                   invalid_tokenizer        missing, of an unknown kind, or inconsistent
├── ChatTemplateError                chat_template_error      it is broken, or refuses these messages
├── ModelNotFoundError               model_not_found          (404) no such alias, file or folder
└── GraphError                       invalid_graph
    ├── GraphCycleError              graph_cycle              .cycle holds the whole cycle
    ├── DuplicateNodeError           duplicate_node
    ├── MissingInputError            missing_graph_input
    └── GraphShapeError              graph_shape
EnvironmentLacksError                500  exit 3   (from aie_tensor)
└── PullError                        pull_failed              no pip, no network, no space, or not the pinned bytes
"""

from collections.abc import Sequence

from aie_tensor import EnvironmentLacksError, InvalidInputError

__all__ = [
    "ChatTemplateError",
    "DuplicateNodeError",
    "GraphCycleError",
    "GraphError",
    "GraphShapeError",
    "MalformedHeaderError",
    "MissingFileError",
    "MissingInputError",
    "MissingTensorError",
    "ModelFileError",
    "ModelNotFoundError",
    "PullError",
    "TensorShapeError",
    "TokenizerError",
    "TruncatedFileError",
    "UnknownArchitectureError",
    "UnsafePickleError",
    "UnsupportedModelError",
    "UnsupportedTensorTypeError",
]

_LONGEST_PRINTED_CYCLE = 40


class ModelFileError(InvalidInputError):
    """A model file is not what it claims to be; the message starts with the file's name."""

    code = "invalid_model_file"


class TruncatedFileError(ModelFileError):
    """The file ends earlier than its own header says: a download or a copy was cut short."""

    code = "truncated_model_file"


class MalformedHeaderError(ModelFileError):
    """The file breaks a rule of its format; the message names the rule."""

    code = "malformed_model_header"


class UnsafePickleError(ModelFileError):
    """A pickle asks for more than tensors; the message names what it asked for. Nothing of it was run."""

    code = "unsafe_pickle"


class UnsupportedTensorTypeError(ModelFileError):
    """A tensor is stored in a type that aie does not read; the message names tensor, type and the known types."""

    code = "unsupported_tensor_type"


class TensorShapeError(ModelFileError):
    """A tensor's shape contradicts the model's configuration."""

    code = "wrong_tensor_shape"


class MissingTensorError(ModelFileError):
    """The graph needs a tensor that the file does not hold; the message names the nearest ones that exist."""

    code = "missing_tensor"


class MissingFileError(ModelFileError):
    """A path does not exist, or a model folder lacks one of its files."""

    code = "missing_model_file"


class UnsupportedModelError(InvalidInputError):
    """The file is sound, but the model needs a feature that aie does not have yet."""

    code = "unsupported_model"


class UnknownArchitectureError(UnsupportedModelError):
    """No graph is known for this architecture; the message lists the known ones."""

    code = "unknown_architecture"


class TokenizerError(InvalidInputError):
    """The tokenizer in a model file or folder is missing, of an unknown kind, or inconsistent."""

    code = "invalid_tokenizer"


class ChatTemplateError(InvalidInputError):
    """The chat template does not compile, raises, or would render without bound."""

    code = "chat_template_error"


class ModelNotFoundError(InvalidInputError):
    """A name is neither a known alias that is present nor a path to a model; the message names `aie pull`."""

    status = 404
    code = "model_not_found"


class PullError(EnvironmentLacksError):
    """Fetching a model failed; the message says what the machine lacks and what to do about it."""

    code = "pull_failed"


class GraphError(InvalidInputError):
    """A graph cannot be executed as it stands."""

    code = "invalid_graph"


class GraphCycleError(GraphError):
    """Nodes wait for each other. `cycle` names them in the order of the data flow, without repeating the first."""

    code = "graph_cycle"

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        names = [*self.cycle, self.cycle[0]]
        if len(names) > _LONGEST_PRINTED_CYCLE:  # `cycle` still holds every name
            half = _LONGEST_PRINTED_CYCLE // 2
            names = [*names[:half], f"… {len(names) - 2 * half} more …", *names[-half:]]
        kind = "feeds itself" if len(self.cycle) == 1 else f"is a cycle of {len(self.cycle)} nodes"
        super().__init__(f"graph cannot be ordered: {' -> '.join(names)} {kind}")


class DuplicateNodeError(GraphError):
    """Two nodes, or a node and a graph input or weight, claim one name."""

    code = "duplicate_node"


class MissingInputError(GraphError):
    """A node or the graph's output names a value that nothing produces."""

    code = "missing_graph_input"


class GraphShapeError(GraphError):
    """An operator's inputs have shapes that do not fit together."""

    code = "graph_shape"
