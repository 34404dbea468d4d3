"""Compare all rungs of the ladder from a naive to a register-tiled, vectorized matrix product.

Run:     python ladder/compare.py [DEVICE]
Prints:  one table: time, power and joules of one call of each rung, and the factors against the first.

DEVICE is a target of `ekc tune`, by default a100@no-residual: a simulated A100 without the random part of
each kernel, so that the table shows the effect of each step alone. docs/learn/tutorial.md explains the
rungs.
"""

import sys

import rung1_naive
import rung2_coalesced
import rung3_shared
import rung4_register_tile
import rung5_vector_loads

import ekc

RUNGS = {
    "naive": rung1_naive,
    "coalesced": rung2_coalesced,
    "shared memory": rung3_shared,
    "register tile": rung4_register_tile,
    "vector loads": rung5_vector_loads,
}


def main(target: str) -> None:
    op = ekc.matmul(512, 512, 512)
    device = ekc.devices.open(target)
    print(f"{op.name} 512 x 512 x 512 float32 on {device.label}, clocks {device.clock_regime}\n")
    print("rung              time [us]   power [W]   energy [mJ]   faster   less energy")
    first = None
    for name, rung in RUNGS.items():
        kernel = ekc.compile(rung.make_schedule(op), arch=device.arch).compiled
        latency, metering = device.time(kernel).latency_s, device.meter(kernel)
        first = first or (latency, metering.energy_j)
        print(
            f"{name:15}{1e6 * latency:12.1f}{metering.power_w:12.0f}{1e3 * metering.energy_j:14.2f}"
            f"{first[0] / latency:8.1f}x{first[1] / metering.energy_j:13.1f}x"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "a100@no-residual")
