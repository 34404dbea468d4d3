"""First words of the status of a schedule that has no valid figures: "compile: ...", "wrong result: ..."."""

from __future__ import annotations

from ekc.runtime.verify import UNSAFE_KERNEL, WRONG_RESULT

REJECTED_VERDICTS = (WRONG_RESULT, UNSAFE_KERNEL)
"""Status of a kernel that was executed and may not win."""
UNCHECKED_PREFIX = "unchecked"
"""Status of a kernel that could not be executed. It may not win either."""
COMPILE_FAILURE_PREFIX = "compile: "
"""Status of a schedule that the compiler refused."""
