"""A kit for one visit to a GPU: everything worth measuring there, within the minutes that there are.

`docs/how-to/kit.md` describes each part and what comes out. One module a part; `kit.py` holds what they
share.
"""
