"""Clock and power limits of a GPU, set through NVML or zeusd under a lease (`ekc.devices.clocks.lease`)."""
