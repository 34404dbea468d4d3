"""ekc: the energy-aware kernel compiler. The public names; heavy modules load at their first use.

>>> import ekc
>>> result = ekc.tune(ekc.matmul(1024, 1024, 1024), target="a100", trials=128)
>>> print(result.summary())
"""

from ekc.lazy_names import list_names

__getattr__, __dir__, __all__ = list_names(__name__)
