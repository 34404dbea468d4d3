"""What a launch does, counted from its tree: operations, traffic, how much of it is resident.

How the lanes of a warp fall on memory and on guards: counted exactly, and remembered.
"""

from __future__ import annotations
