"""Pictures and reports of tuning runs. They render plain data, and know neither the search nor a device."""
