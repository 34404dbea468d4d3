"""Blocks of pages that need PyTorch, executed from the text of the page."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks, printed

pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")


def test_page_of_compiled_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/pytorch-models.md").read_text()
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ekc.torch: ")
        outputs = [printed(block, namespace) for block in blocks(page)]
    kernels, table, _, code, check, backend = outputs
    assert kernels == "True\n"
    assert table.startswith("2 of 2 layers are kernels, tuned for a100 (simulated)\n")
    assert code.count("torch.ops.ekc.") == 2
    assert check.startswith("2 kernels checked\n")
    assert check.count("right") == 3
    assert backend.startswith("True\n")
    assert "PyTorch: no layer has a record" in backend


def test_page_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/models.md").read_text()
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    _, model, summary, block, exported = [
        printed(x, namespace) for x in blocks(page) if x.language == "python"
    ]
    assert "of unknown work; 100.0% of known flops and 99.7% of bytes." in model
    assert "classifier: 4 calls" in summary
    assert "c + bias + before" in block
    assert "Covered by layers: 100.0% of flops" in block
    assert exported == "100.0% of flops and 100.0% of bytes\n"
