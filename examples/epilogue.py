"""Fuse bias, activation and residual into a matrix product with epilogues.

Run:     python epilogue.py
Prints:  the operator, the best schedule (one launch), time and energy of one launch beside one launch for
         each step, and whether the kernel agrees with NumPy.

Time and energy are those of a simulated A100.
"""

import numpy as np

import ekc

layer = (
    ekc.matmul(128, 128, 64)
    .epilogue(lambda c, bias: ekc.relu(c + bias), bias=(128,))
    .epilogue(lambda d, before: d + before, before=(128, 128))
)


def tile_product(schedule: ekc.Schedule) -> ekc.Schedule:
    """The product C in tiles of 16 x 16 threads."""
    return (
        schedule.split("i", (16,))
        .split("j", (16,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C")
    )


def make_fused() -> ekc.Schedule:
    """One launch: both epilogues work on the registers that hold the sums."""
    return tile_product(ekc.Schedule(layer)).compute_inline("C").compute_inline("C_out")


def make_separate() -> ekc.Schedule:
    """Three launches: each stores its result and the next one loads it."""
    schedule = tile_product(ekc.Schedule(layer))
    for i, j in (("i_out", "j_out"), ("i_out2", "j_out2")):
        schedule = schedule.bind(i, "block.x").bind(j, "thread.x")
    return schedule


def main() -> None:
    print(layer)
    device = ekc.devices.open("a100@no-residual")
    print(f"\non {device.label}:")
    for name, schedule in (("fused", make_fused()), ("separate", make_separate())):
        kernel = ekc.compile(schedule, arch=device.arch).compiled
        latency_us = 1e6 * device.time(kernel).latency_s
        energy_uj = 1e6 * device.meter(kernel).energy_j
        print(f"{name:10}{len(kernel.launches)} launches {latency_us:8.2f} us {energy_uj:8.1f} uJ")

    result = ekc.tune(layer, target="a100", trials=8, seed=0, progress=False)
    launches = len(result.compile().launches)
    print(f"\nthe best of {result.trial_count} tuned schedules has {launches} launch(es):")
    print(result.best.schedule)

    random = np.random.default_rng(0)
    a, b, bias, before = (random.standard_normal(t.shape, dtype=np.float32) for t in layer.inputs)
    expected = np.maximum(a @ b + bias, 0) + before
    print("\nagrees with NumPy:", np.allclose(result.compile()(a, b, bias, before), expected, atol=1e-4))


if __name__ == "__main__":
    main()
