"""Infers the GPUs of a job from variables of its environment, where NVML does not show its processes.

| variable | what it says |
|---|---|
| `CUDA_VISIBLE_DEVICES` | UUIDs, also abbreviated; or numbers in the order in which CUDA counts |
| `SLURM_STEP_GPUS`, `SLURM_JOB_GPUS` | numbers of the host |
| `NVIDIA_VISIBLE_DEVICES` | UUIDs, or numbers of the host, of the GPUs that a container was given |

A container may see fewer GPUs than its host and count them from 0. `GPU_DEVICE_ORDINAL`, which Slurm sets
too, is read by AMD's libraries alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekc.tables import count_nouns

CUDA_VARIABLE, ORDER_VARIABLE = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
HOST_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES")
"""Variables with numbers of the host, the narrowest first."""
VARIABLES = (CUDA_VARIABLE, ORDER_VARIABLE, *HOST_VARIABLES)
_NOTHING_SAID = ("", "all", "none", "void")
"""Values of `HOST_VARIABLES` that name no GPU."""


@dataclass(frozen=True)
class VisibleBoard:
    """A GPU that this process may use, as NVML describes it."""

    index: int
    """Number of nvidia-smi."""
    uuid: str
    model: str
    pci_address: str
    """As lspci writes it; empty where it cannot be read."""
    minor: int | None = None
    """Number of its file /dev/nvidiaN, which a container keeps; None where it cannot be read."""
    is_split: bool = False
    """Whether MIG splits it."""


@dataclass(frozen=True)
class InferredBoards:
    """Boards that the environment names, none where it names none that can be trusted."""

    boards: tuple[VisibleBoard, ...] = ()
    reason: str = ""
    """The variable that names them, with its value."""
    is_named: bool = False
    """Whether the job names them by UUID, so that they need no other evidence."""
    is_part: bool = False
    """Whether the job was given a part of a GPU that is split by MIG."""
    ignored: tuple[str, ...] = ()
    """A line for each variable that was not used."""


class _UnusableError(Exception):
    """Why a variable names no GPU that can be trusted."""


def infer_boards(
    variables: Mapping[str, str | None], boards: Sequence[VisibleBoard], board_count: int
) -> InferredBoards:
    """Boards of a job from its `variables`, which hold None for one that is not set.

    `board_count` is the number of GPUs that NVML counts here, those included that may not be used.
    """
    cuda = variables.get(CUDA_VARIABLE)
    words = None if cuda is None else _split_words(cuda)
    if words is not None and words[0].startswith("MIG-"):
        return InferredBoards(reason=f"{CUDA_VARIABLE}={cuda}", is_part=True)
    ignored: list[str] = []
    if words is not None:
        if not words[0].isdecimal() and not words[0].startswith("GPU-"):
            return InferredBoards(ignored=(f"{CUDA_VARIABLE}={cuda} hides all GPUs from the job",))
        try:
            return _infer_from_cuda(words, variables.get(ORDER_VARIABLE), boards)
        except _UnusableError as problem:
            ignored.append(f"{CUDA_VARIABLE}={cuda} is ignored: {problem}")
        if not words[0].isdecimal():  # CUDA shows the job no GPU at all then.
            return InferredBoards(ignored=tuple(ignored))
    for name in HOST_VARIABLES:
        text = variables.get(name)
        if text is None or text in _NOTHING_SAID:
            continue
        try:
            found = _select_host_boards(_split_words(text), boards, board_count)
            if words is not None and len(words) != len(found):
                raise _UnusableError(
                    f"it names {count_nouns(len(found), 'GPU')}, {CUDA_VARIABLE} {len(words)}"
                )
            return InferredBoards(found, f"{name}={text}", ignored=tuple(ignored))
        except _UnusableError as problem:
            ignored.append(f"{name}={text} is ignored: {problem}")
    if len(boards) == 1:
        return InferredBoards(tuple(boards), "it is the only GPU here", ignored=tuple(ignored))
    return InferredBoards(ignored=tuple(ignored))


def _split_words(text: str) -> list[str]:
    """Words of a list, up to -1, after which CUDA reads no more; at least one."""
    words = [word.strip() for word in text.split(",")]
    return words[: words.index("-1")] or ["-1"] if "-1" in words else words


def _infer_from_cuda(
    words: Sequence[str], order: str | None, boards: Sequence[VisibleBoard]
) -> InferredBoards:
    """Boards that CUDA shows to the job. Raises `_UnusableError`."""
    reason = f"{CUDA_VARIABLE}={','.join(words)}"
    has_numbers = any(word.isdecimal() for word in words)
    if has_numbers:
        reason += f", {_explain_order(order, boards)}"
    by_address = sorted(boards, key=lambda board: board.pci_address)
    found = []
    for word in words:
        if not word.isdecimal():
            found.append(_find_board(word, boards))
        elif int(word) < len(by_address):
            found.append(by_address[int(word)])
        else:
            here = count_nouns(len(boards), "GPU")
            raise _UnusableError(f"only {here} can be used here, and it counts at least {int(word) + 1}")
    return InferredBoards(_drop_repeated(found), reason, is_named=not has_numbers)


def _explain_order(order: str | None, boards: Sequence[VisibleBoard]) -> str:
    """How CUDA counts the boards by PCI address. Raises `_UnusableError` where it may count otherwise."""
    remedy = f"set {ORDER_VARIABLE}=PCI_BUS_ID for the job"
    if any(board.is_split for board in boards):
        raise _UnusableError(
            "a GPU here is split by MIG, and CUDA then counts in another order than nvidia-smi"
        )
    if len(boards) > 1 and not all(board.pci_address for board in boards):
        raise _UnusableError("the driver does not give the PCI address of each GPU")
    if order == "PCI_BUS_ID":
        return f"with {ORDER_VARIABLE}=PCI_BUS_ID"
    models = sorted({board.model for board in boards})
    if len(models) > 1:
        raise _UnusableError(
            f"the GPUs here are of {len(models)} models ({', '.join(models)}), "
            f"which CUDA counts by their speed; {remedy}"
        )
    addresses = [board.pci_address for board in sorted(boards, key=lambda board: board.index)]
    if addresses != sorted(addresses):
        raise _UnusableError(f"nvidia-smi does not count the GPUs here by PCI address; {remedy}")
    return "counted by PCI address, since all GPUs here are of one model"


def _select_host_boards(
    words: Sequence[str], boards: Sequence[VisibleBoard], board_count: int
) -> tuple[VisibleBoard, ...]:
    """Boards by UUID, or by their number on the host. Raises `_UnusableError` where that is not certain."""
    found = []
    for word in _expand_ranges(words, board_count):
        if not word.isdecimal():
            found.append(_find_board(word, boards))
            continue
        if int(word) >= board_count:
            raise _UnusableError(
                f"the host numbered at least {int(word) + 1} GPUs, and NVML sees {board_count} here"
            )
        moved = next((x for x in boards if x.minor is not None and x.minor != x.index), None)
        if moved is not None:
            raise _UnusableError(
                f"the host may count otherwise, since GPU {moved.index} here is its /dev/nvidia{moved.minor}"
            )
        found.append(_find_number(int(word), boards))
    return _drop_repeated(found)


def _expand_ranges(words: Sequence[str], most: int) -> list[str]:
    """Single numbers, up to `most`, for ranges such as 0-3; other words as they are."""
    expanded = []
    for word in words:
        first, _, last = word.partition("-")
        is_range = first.isdecimal() and last.isdecimal()
        expanded += [str(n) for n in range(int(first), min(int(last), most) + 1)] if is_range else [word]
    return expanded


def _find_number(number: int, boards: Sequence[VisibleBoard]) -> VisibleBoard:
    for board in boards:
        if board.index == number:
            return board
    raise _UnusableError(f"GPU {number} may not be used by this process")


def _find_board(word: str, boards: Sequence[VisibleBoard]) -> VisibleBoard:
    """The board whose UUID begins with a word, as CUDA reads it."""
    found = [board for board in boards if word.startswith("GPU-") and board.uuid.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _UnusableError(f"{len(found)} GPUs here have a UUID that begins with {word}")
    raise _UnusableError(f"no GPU here has the UUID {word}; see nvidia-smi -L")


def _drop_repeated(boards: Sequence[VisibleBoard]) -> tuple[VisibleBoard, ...]:
    return tuple(dict.fromkeys(boards))
