"""The CUDA source compiles, also where no GPU would run it."""

import pytest

from aie_tensor.memory.cuda.kernels import NVRTC_OPTIONS, SOURCE


@pytest.fixture
def nvrtc(compile_kernels):
    path = compile_kernels.find_nvrtc()
    if path is None:
        pytest.skip("NVRTC is not here: pip install nvidia-cuda-nvrtc-cu12 (90 MB, needs no GPU)")
    return compile_kernels.Nvrtc(path)


def test_every_architecture_compiles_without_a_warning(nvrtc, compile_kernels):
    sizes = compile_kernels.compile_all(nvrtc, NVRTC_OPTIONS)
    assert sizes and all(sizes.values())


def test_an_error_is_reported_with_its_line(nvrtc):
    with pytest.raises(RuntimeError, match=r"broken.cu\(1\): error"):
        nvrtc.compile("int x = ;", "broken.cu", [*NVRTC_OPTIONS, "--gpu-architecture=sm_80"])


def test_the_script_compiles_what_the_package_ships(compile_kernels):
    assert compile_kernels.SOURCE.resolve() == SOURCE.resolve()
    assert "#include" not in SOURCE.read_text(encoding="utf-8")  # NVRTC alone has no headers
