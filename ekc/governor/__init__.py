"""The clock governor: sets GPU clocks for least energy of a running training job within a slowdown budget."""

from ekc.lazy_names import list_names

__getattr__, __dir__, __all__ = list_names(__name__)
