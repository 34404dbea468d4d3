"""Rung 4: each thread computes a tile of 4 x 4 elements, so that 8 loads serve 16 multiply-adds.

Run:     python ladder/rung4_register_tile.py
Prints:  the schedule.

The innermost parts of the splits (`i.2`, `j.2`) are the tile of a thread. A column of A and a row of B are
held in registers while they are used.
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
        .cache_write("C")
        .cache_read("A", "shared", at="k.0")
        .cache_read("B", "shared", at="k.0")
        .cache_read("A.shared", "register", at="k.1")
        .cache_read("B.shared", "register", at="k.1")
    )


if __name__ == "__main__":
    print(make_schedule(ekc.matmul(256, 256, 256)))
