"""All CUDA kernels by hand."""

from __future__ import annotations

from tests.emulator import by_hand_memory, by_hand_numbers, by_hand_tensor, by_hand_threads
from tests.emulator.case import Case

CASES: tuple[Case, ...] = (
    *by_hand_memory.CASES,
    *by_hand_threads.CASES,
    *by_hand_numbers.CASES,
    *by_hand_tensor.CASES,
)
