"""Four broken schedules and the refusal that each gets.

Run:     python broken_schedules.py
Prints:  for each schedule what is wrong with it, and the refusal: rule, number, limit, nearest legal
         choice.

A step is checked when it is added, so no illegal schedule exists. Limits of a device are checked by
`ekc.compile`, as a schedule may be legal on one target and not on another.
"""

from collections.abc import Callable

import ekc

op = ekc.matmul(96, 96, 96)


def cut_unevenly() -> None:
    ekc.Schedule(op).split("i", (16,)).split("i.1", (5,))


def sum_across_blocks() -> None:
    ekc.Schedule(op).bind("k", "block.x")


def take_too_many_threads() -> None:
    schedule = ekc.Schedule(op).split("i", (48,)).split("j", (48,))
    schedule = schedule.reorder("i.0", "j.0", "i.1", "j.1", "k")
    schedule = schedule.bind("i.0", "block.y").bind("j.0", "block.x")
    ekc.compile(schedule.bind("i.1", "thread.y").bind("j.1", "thread.x"))


def load_three_elements() -> None:
    schedule = ekc.Schedule(op).split("i", (16,)).split("j", (16,)).split("k", (16,))
    schedule = schedule.reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1")
    schedule = schedule.bind("i.0", "block.y").bind("j.0", "block.x")
    schedule = schedule.bind("i.1", "thread.y").bind("j.1", "thread.x").cache_write("C")
    schedule.cache_read("A", "shared", at="k.0", vector=3)


BROKEN: dict[str, Callable[[], None]] = {
    "a factor that does not divide the loop": cut_unevenly,
    "a sum spread over blocks": sum_across_blocks,
    "2304 threads in a block": take_too_many_threads,
    "loads of three elements": load_three_elements,
}


def main() -> None:
    for wrong, build in BROKEN.items():
        print(wrong)
        try:
            build()
        except ekc.ScheduleError as refusal:
            print(f"  refused: {refusal}")
        else:
            print("  accepted")


if __name__ == "__main__":
    main()
