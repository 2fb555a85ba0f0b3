"""Makes the files beside it with PyTorch itself: `python make.py`, in an environment that has torch and numpy.

The suite only reads them, so it needs no torch. `expected.npz` holds what torch says is in each tensor, as
`FILE/NAME`: in its own type where NumPy has it, as float32 where not.
"""

from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.norm = torch.nn.BatchNorm2d(2)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).flatten(1))


def every_type() -> dict[str, torch.Tensor]:
    tensors = {}
    for name in ("float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"):
        tensors[name] = torch.arange(-2, 4).reshape(2, 3).to(getattr(torch, name))
    for name in ("uint16", "uint32", "uint64"):
        tensors[name] = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    tensors["complex64"] = torch.complex(torch.arange(3.0), -torch.arange(3.0))
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        tensors[name] = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    return tensors


def every_view() -> dict[str, torch.Tensor]:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "base": base,
        "same": base,
        "rows": base[1:3],
        "columns": base[:, 2:4],
        "transposed": base.t(),
        "stepped": base[::2, ::3],
        "scalar": torch.tensor(7.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    try:
        return np.array(tensor.numpy(), order="C")
    except TypeError:
        return tensor.to(torch.float32).numpy()


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    files = {"state": model.state_dict(), "types": every_type(), "views": every_view()}
    for name, tensors in files.items():
        torch.save(tensors, HERE / f"{name}.pt")
    torch.save(
        {
            "epoch": 3,
            "loss": 0.25,
            "note": "ünïcode",
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).state_dict(),
        },
        HERE / "training.pt",
    )
    torch.save(model, HERE / "whole_model.pt")
    torch.save(every_view(), HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"wide": torch.zeros(1).expand(1000, 1000)}, HERE / "expanded.pt")
    torch.save({"sparse": torch.eye(3).to_sparse()}, HERE / "sparse.pt")
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(HERE / "script.pt"))
    expected = {f"{file}/{name}": numpy_of(t) for file, tensors in files.items() for name, t in tensors.items()}
    np.savez(HERE / "expected.npz", **expected)


if __name__ == "__main__":
    main()
