"""The compile cache: same output, survives damage and company, never stops a compile."""

from __future__ import annotations

import multiprocessing
import warnings
from pathlib import Path

import pytest

from ekc.codegen import cache, nvrtc
from ekc.codegen.cache import compile_cached
from ekc.errors import CompileError

SOURCE = 'extern "C" __global__ void scale(float* a) { a[threadIdx.x] *= 2.0f; }\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def test_a_kept_output_equals_a_fresh_one(place: Path) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    written = entry.stat().st_mtime_ns
    assert compile_cached(SOURCE) == first == nvrtc.compile(SOURCE)
    assert entry.stat().st_mtime_ns == written


def test_a_hit_compiles_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cached(SOURCE)

    def compiled(*_: object) -> nvrtc.NvrtcOutput:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "compile", compiled)
    assert compile_cached(SOURCE) == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_cached(SOURCE + "\n")


def test_source_arch_and_options_each_make_an_entry(place: Path) -> None:
    compile_cached(SOURCE)
    assert compile_cached(SOURCE, "sm_90").arch == "sm_90"
    compile_cached(SOURCE, options=["--use_fast_math"])
    compile_cached(SOURCE + "\n")
    assert len(entries(place)) == 4


@pytest.mark.parametrize("keep", [0, 10, 64, 65, 100, 1000, -1])
def test_a_truncated_entry_is_compiled_again_and_repaired(place: Path, keep: int) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:keep])
    assert compile_cached(SOURCE) == first
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("at", [0, 64, 70, 300, -1])
def test_a_flipped_byte_is_found(place: Path, at: int) -> None:
    first = compile_cached(SOURCE)
    (entry,) = entries(place)
    content = bytearray(entry.read_bytes())
    content[at] ^= 0xFF
    entry.write_bytes(content)
    assert compile_cached(SOURCE) == first


def test_a_refused_text_is_not_kept(place: Path) -> None:
    with pytest.raises(CompileError):
        compile_cached("not CUDA")
    assert not place.exists()


def test_a_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match=r"compile cache .*file/cache cannot be written"):
        assert compile_cached(SOURCE).cubin
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_cached(SOURCE).cubin


def _compile(number: int) -> bytes:
    return compile_cached(SOURCE + "\n" * (number % 2)).cubin


def test_processes_share_the_folder(place: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        cubins = pool.map(_compile, range(12), chunksize=1)
    assert set(cubins[::2]) == {compile_cached(SOURCE).cubin}
    # Two entries, and nothing that was written aside is left.
    assert len(entries(place)) == 2


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("EKC_CACHE_DIR", "~/kept")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/shared")
    assert cache.find_folder() == Path("/home/me/kept")
    monkeypatch.delenv("EKC_CACHE_DIR")
    assert cache.find_folder() == Path("/var/shared/ekc")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.find_folder() == Path("/home/me/.cache/ekc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.find_folder() == Path("/home/me/.cache/ekc")
