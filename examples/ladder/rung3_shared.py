"""Rung 3: the threads of a block copy tiles of A and B into shared memory and read them there.

Run:     python ladder/rung3_shared.py
Prints:  the schedule. ekc adds the barriers.

Each element of a tile is loaded from global memory once a block, not once a thread. Shared memory alone
gains little: the caches caught most of the reuse before, and each multiply-add still needs two loads.
"""

import ekc


def make_schedule(op: ekc.Operator) -> ekc.Schedule:
    return (
        ekc.Schedule(op)
        .split("i", (16,))
        .split("j", (16,))
        .split("k", (16,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0")
        .cache_read("B", "shared", at="k.0")
    )


if __name__ == "__main__":
    print(make_schedule(ekc.matmul(256, 256, 256)))
