"""Pictures of a schedule as SVG text: loops, threads, staging, banks, fragments."""
