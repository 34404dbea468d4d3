"""Rung 1: one thread computes one element of C, and neighbouring threads hold neighbouring rows.

Run:     python ladder/rung1_naive.py
Prints:  the schedule.

Neighbouring threads (`thread.x` runs fastest) read elements of A that are one row from each other. Each
fetches a sector of 32 bytes and uses 4 of them.
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
        .bind("i.1", "thread.x")
        .bind("j.1", "thread.y")
        .cache_write("C")
    )


if __name__ == "__main__":
    print(make_schedule(ekc.matmul(256, 256, 256)))
