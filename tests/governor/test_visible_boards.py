"""GPUs that the environment of a job names, in containers and on their hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekc.governor.live.visible_boards import InferredBoards, VisibleBoard, infer_boards

A40, L4 = "NVIDIA A40", "NVIDIA L4"
FOUR = tuple(VisibleBoard(n, f"GPU-{n}aa{n}-beef", A40, f"0000:{n + 1:02x}:00.0", n) for n in range(4))
TWO_MODELS = (replace(FOUR[0], model=L4), *FOUR[1:])
SWAPPED = (replace(FOUR[0], pci_address=FOUR[1].pci_address), replace(FOUR[1], pci_address="0000:01:00.0"))
SPLIT = (replace(FOUR[0], is_split=True), *FOUR[1:])
RENUMBERED = tuple(replace(board, minor=board.index + 2) for board in FOUR[:2])
"""Two GPUs that a container counts from 0, which are numbers 2 and 3 of the host."""
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def infer(boards: tuple[VisibleBoard, ...], count: int | None = None, **variables: str) -> InferredBoards:
    return infer_boards(variables, boards, count or len(boards))


def get_numbers(found: InferredBoards) -> list[int]:
    return [board.index for board in found.boards]


@pytest.mark.parametrize(
    ("boards", "variables", "numbers"),
    [
        (FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-2aa2-beef"}, [2]),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-3, GPU-1aa"}, [3, 1]),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-1aa1"}, [1]),
        (TWO_MODELS, {"CUDA_VISIBLE_DEVICES": "GPU-0,-1,GPU-1"}, [0]),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "1,3"}, [1, 3]),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "2,-1,3"}, [2]),
        (TWO_MODELS, {"CUDA_VISIBLE_DEVICES": "1"} | BY_BUS, [1]),
        (SWAPPED, {"CUDA_VISIBLE_DEVICES": "0"} | BY_BUS, [1]),
        (FOUR[1:], {"CUDA_VISIBLE_DEVICES": "0"}, [1]),
        (FOUR, {"NVIDIA_VISIBLE_DEVICES": "0,2"}, [0, 2]),
        (FOUR, {"NVIDIA_VISIBLE_DEVICES": "GPU-2aa2"}, [2]),
        (FOUR, {"SLURM_JOB_GPUS": "1-2"}, [1, 2]),
        (FOUR, {"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, [1]),
        (TWO_MODELS, {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "2,3"}, [2, 3]),
        (FOUR[:1], {}, [0]),
        (FOUR[:1], {"NVIDIA_VISIBLE_DEVICES": "all"}, [0]),
        (RENUMBERED[:1], {"NVIDIA_VISIBLE_DEVICES": "2"}, [0]),
    ],
)
def test_named_gpus_are_taken(
    boards: tuple[VisibleBoard, ...], variables: dict[str, str], numbers: list[int]
) -> None:
    found = infer(boards, **variables)
    assert get_numbers(found) == numbers
    assert found.is_named == variables.get("CUDA_VISIBLE_DEVICES", "").startswith("GPU-")
    if variables and "all" not in variables.values() and not found.ignored:
        assert "_" in found.reason


@pytest.mark.parametrize(
    ("boards", "variables", "words"),
    [
        (TWO_MODELS, {"CUDA_VISIBLE_DEVICES": "1"}, "2 models (NVIDIA A40, NVIDIA L4)"),
        (TWO_MODELS, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "2 models"),
        (SWAPPED, {"CUDA_VISIBLE_DEVICES": "0"}, "not count the GPUs here by PCI address"),
        (SPLIT, {"CUDA_VISIBLE_DEVICES": "1"} | BY_BUS, "split by MIG"),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "4"}, "only 4 GPUs"),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-"}, "4 GPUs here have a UUID that begins with GPU-"),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-9"}, "no GPU here has the UUID GPU-9"),
        (FOUR[:1], {"CUDA_VISIBLE_DEVICES": "GPU-9"}, "no GPU here has the UUID GPU-9"),
        (FOUR[:1], {"CUDA_VISIBLE_DEVICES": "-1"}, "hides all GPUs"),
        (FOUR[:1], {"CUDA_VISIBLE_DEVICES": ""}, "hides all GPUs"),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_GPUS": "1"}, "hides all GPUs"),
        (RENUMBERED, {"NVIDIA_VISIBLE_DEVICES": "2,3"}, "numbered at least 3 GPUs, and NVML sees 2"),
        (FOUR, {"SLURM_JOB_GPUS": "0-9999999999"}, "numbered at least 5 GPUs, and NVML sees 4"),
        (RENUMBERED, {"NVIDIA_VISIBLE_DEVICES": "0"}, "GPU 0 here is its /dev/nvidia2"),
        (FOUR, {"NVIDIA_VISIBLE_DEVICES": "0:1"}, "no GPU here has the UUID 0:1"),
    ],
)
def test_uncertain_variables_are_ignored_with_a_line(
    boards: tuple[VisibleBoard, ...], variables: dict[str, str], words: str
) -> None:
    found = infer(boards, **variables)
    assert found.boards == ()
    (line,) = found.ignored
    assert words in line
    assert "_VISIBLE_DEVICES=" in line or "SLURM_JOB_GPUS=" in line


def test_numbers_of_the_host_must_agree_with_those_of_cuda() -> None:
    found = infer(TWO_MODELS, CUDA_VISIBLE_DEVICES="0", SLURM_JOB_GPUS="2,3")
    assert found.boards == ()
    assert "it names 2 GPUs, CUDA_VISIBLE_DEVICES 1" in found.ignored[1]


def test_gpu_that_may_not_be_used_is_not_taken() -> None:
    """A control group refuses GPU 0; NVML counts it all the same, CUDA does not."""
    assert "GPU 0 may not be used" in infer(FOUR[1:], 4, SLURM_JOB_GPUS="0").ignored[0]
    assert get_numbers(infer(FOUR[1:], 4, SLURM_JOB_GPUS="1")) == [1]
    assert get_numbers(infer(FOUR[1:], 4, CUDA_VISIBLE_DEVICES="0", SLURM_JOB_GPUS="1")) == [1]


@pytest.mark.parametrize("word", ["MIG-7b1e", "MIG-GPU-0aa0-beef/1/0"])
def test_part_of_a_gpu_is_known_as_such(word: str) -> None:
    assert infer(SPLIT, CUDA_VISIBLE_DEVICES=word).is_part


def test_environment_without_gpus_names_none() -> None:
    assert infer(FOUR) == InferredBoards()
    assert infer(FOUR, NVIDIA_VISIBLE_DEVICES="all") == InferredBoards()
