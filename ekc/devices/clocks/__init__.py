"""Clock and power limits of a GPU, set through NVML or zeusd, always under a lease
(`ekc.devices.clocks.lease`)."""
