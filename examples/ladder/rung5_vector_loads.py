"""Rung 5: four neighbours move with one instruction of 128 bits.

Run:     python ladder/rung5_vector_loads.py
Prints:  the schedule.

A thread needs four rows of A, which are neighbours only in a transposed tile: `order=(1, 0)`. `pad=4`
lengthens the rows of that tile, so that its stores meet fewer bank conflicts.
"""

import ekc


def make_schedule(op: ekc.Operator) -> ekc.Schedule:
    return (
        ekc.Schedule(op)
        .split("i", (16, 4))
        .split("j", (16, 4))
        .split("k", (16,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C", vector=4)
        .cache_read("A", "shared", at="k.0", vector=4, order=(1, 0), pad=4)
        .cache_read("B", "shared", at="k.0", vector=4)
        .cache_read("A.shared", "register", at="k.1", vector=4)
        .cache_read("B.shared", "register", at="k.1", vector=4)
    )


if __name__ == "__main__":
    print(make_schedule(ekc.matmul(256, 256, 256)))
