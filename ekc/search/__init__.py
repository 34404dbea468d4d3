"""The search: design space, genetic operators, models, metering budget, tuner, records."""
