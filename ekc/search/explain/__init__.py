"""Why one schedule costs more energy than another."""
