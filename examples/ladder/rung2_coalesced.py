"""Rung 2: the two thread axes change places, so that neighbouring threads read neighbouring elements of B.

Run:     python ladder/rung2_coalesced.py
Prints:  the schedule.
"""

import ekc


def make_schedule(op: ekc.Operator) -> ekc.Schedule:
    return (
        ekc.Schedule(op)
        .split("i", (16,))
        .split("j", (16,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C")
    )


if __name__ == "__main__":
    print(make_schedule(ekc.matmul(256, 256, 256)))
