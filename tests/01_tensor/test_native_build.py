"""Building the kernels: cache, other instruction sets, and every way in which it can fail."""

import stat
import subprocess
import sys

import numpy as np
import pytest

from aie_tensor import DType, NativeUnavailableError, native, ops, quantize
from aie_tensor.native import build as builder

pytestmark = pytest.mark.native


def script(path, text):
    """An executable that stands in for a compiler."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return native.Compiler((str(path),), "fake compiler 1.0")


# copies anything that is there as the "library": enough for what the cache does
FAKE = 'while [ "$1" != "-o" ]; do shift; done\necho built > "$2"\n'


def test_one_line_is_reported_and_the_second_build_is_cached(tmp_path):
    compiler, lines = script(tmp_path / "cc", FAKE), []
    first = builder.build(report=lines.append, compiler=compiler, cache=tmp_path / "cache")
    assert lines == [f"compiling kernels with fake compiler 1.0 (once; cached in {tmp_path / 'cache'})"]
    assert builder.build(report=lines.append, compiler=compiler, cache=tmp_path / "cache") == first and len(lines) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name], "temporary files were left"


def test_flags_compiler_and_cpu_have_their_own_files(tmp_path, monkeypatch):
    compiler = script(tmp_path / "cc", FAKE)
    keys = {builder.cache_key(compiler, ["-O3"]), builder.cache_key(compiler, ["-O2"])}
    keys.add(builder.cache_key(native.Compiler(compiler.command, "fake compiler 1.1"), ["-O3"]))
    monkeypatch.setattr(builder, "cpu_identity", lambda: "another CPU")
    keys.add(builder.cache_key(compiler, ["-O3"]))
    assert len(keys) == 4


def test_no_compiler_is_a_typed_error_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "find_compilers", lambda: iter(()))
    with pytest.raises(NativeUnavailableError, match=r"No C compiler was found.*pip install ziglang") as caught:
        native.load(cache=tmp_path)
    assert caught.value.exit_code == 3


def test_a_failing_compiler_is_quoted(tmp_path):
    compiler = script(tmp_path / "cc", "echo 'simd.h: no such instruction' >&2\nexit 1\n")
    with pytest.raises(NativeUnavailableError, match=r"fake compiler 1.0 could not compile.*no such instruction"):
        native.load(compiler=compiler, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_compiler_that_refuses_native_is_tried_without(tmp_path):
    refusing = 'for a in "$@"; do case "$a" in -m*=native) echo "unknown CPU" >&2; exit 1;; esac; done\n' + FAKE
    assert builder.build(compiler=script(tmp_path / "cc", refusing), cache=tmp_path / "cache").exists()


def test_a_library_that_cannot_be_loaded_is_a_typed_error(tmp_path):
    with pytest.raises(NativeUnavailableError, match="cannot be loaded"):
        native.load(compiler=script(tmp_path / "cc", FAKE), cache=tmp_path / "cache")


def test_a_damaged_library_in_the_cache_is_built_anew(tmp_path):
    lines = []
    path = builder.build(cache=tmp_path)
    path.write_bytes(b"\x7fELF, cut short")
    library = native.load(report=lines.append, cache=tmp_path)
    assert (library.path, len(lines)) == (path, 1)
    assert library.isa


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems check the length themselves")
@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.999])
def test_a_library_that_was_cut_is_built_anew_and_does_not_kill_the_process(tmp_path, part):
    whole = builder.build()
    copying = script(tmp_path / "cc", f'while [ "$1" != "-o" ]; do shift; done\ncp "{whole}" "$2"\n')
    path = builder.build(compiler=copying, cache=tmp_path / "cache")
    assert not builder.is_cut(path)
    path.write_bytes(whole.read_bytes()[: int(part * whole.stat().st_size)])
    lines = []
    library = native.load(report=lines.append, compiler=copying, cache=tmp_path / "cache")
    assert (library.path, len(lines)) == (path, 1) and library.isa


def test_what_cannot_be_removed_from_the_cache_is_named(tmp_path):
    compiler = script(tmp_path / "cc", FAKE)
    (tmp_path / "cache" / f"{builder.cache_key(compiler, builder.BASE_FLAGS)}.so").mkdir(parents=True)
    with pytest.raises(NativeUnavailableError, match="Remove it by hand"):
        native.load(compiler=compiler, flags=[], cache=tmp_path / "cache")


def test_a_library_that_never_loads_is_not_kept(tmp_path):
    with pytest.raises(NativeUnavailableError, match=r"cannot be loaded: .*pip install ziglang"):
        native.load(compiler=script(tmp_path / "cc", FAKE), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_full_disk_is_not_blamed_on_the_compiler(tmp_path):
    full = script(tmp_path / "cc", "echo 'ld: final link failed: No space left on device' >&2\nexit 1\n")
    with pytest.raises(NativeUnavailableError, match="Make room on the disk"):
        native.load(compiler=full, cache=tmp_path / "cache")


def test_an_unusable_cache_folder_falls_back_to_a_temporary_one(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(builder.tempfile, "gettempdir", lambda: str(tmp_path))
    compiler = script(tmp_path / "cc", FAKE)
    assert builder.build(compiler=compiler, cache=tmp_path / "file").parent.parent == tmp_path
    monkeypatch.setattr(builder.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    with pytest.raises(NativeUnavailableError, match="cannot be stored"):
        builder.build(compiler=compiler, cache=tmp_path / "file")


def test_two_processes_may_build_at_once(tmp_path):
    slow = "sleep 0.2\n" + FAKE
    compiler = script(tmp_path / "cc", slow)
    code = (
        "import sys, pathlib; from aie_tensor.native import Compiler; from aie_tensor.native.build import build;"
        "print(build(compiler=Compiler((sys.argv[1],), 'fake'), cache=pathlib.Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, compiler.command[0], str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in both}
    assert len(paths) == 1 and all(process.returncode == 0 for process in both)
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(
    ("isa", "flags"),
    [("avx2", ["-mavx2", "-mfma", "-mf16c"]), ("portable", [])],
)
@pytest.mark.parametrize("dtype", [DType.F16, DType.Q8_0, DType.Q4_1])
def test_other_instruction_sets_give_the_same_results(bench, isa, flags, dtype):
    """The kernels of smaller CPUs, built here by flags instead of for this CPU."""
    if builder.platform.machine().lower() not in {"x86_64", "amd64"}:
        pytest.skip("these flags are for x86")
    if isa == "avx2" and not {"avx2", "fma", "f16c"} <= set(builder.cpu_identity().split()):
        pytest.skip("this CPU has no AVX2")
    try:
        lib = native.load(flags=flags)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    assert lib.isa == isa
    rng = np.random.default_rng(0)
    matrix = quantize(rng.standard_normal((53, 416), dtype=np.float32) / 20, dtype)
    rows = rng.standard_normal((16, 416), dtype=np.float32)
    packed = native.PackedMatrix.pack(lib, matrix)
    expected = ops.linear(rows, matrix.dequantize())
    gated = expected / (1 + np.exp(-expected)) * expected
    plan = bench(lib, max_tokens=16)
    x, out, both = plan.buffer(rows), plan.buffer(width=53), plan.buffer(width=53)
    plan.builder.linear(x, [packed], out)
    plan.builder.swiglu(x, packed, packed, both)
    alone = None
    for num_tokens in range(1, 17):  # each instruction set has its own counts at which it goes about them another way
        plan.run_tokens(num_tokens)
        result = plan.read(out, num_tokens)
        np.testing.assert_allclose(result, expected[:num_tokens], rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(plan.read(both, num_tokens), gated[:num_tokens], rtol=1e-5, atol=2e-5)
        alone = result[0] if alone is None else alone
        np.testing.assert_array_equal(result[0], alone)
