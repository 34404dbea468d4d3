"""How the lanes of a warp fall on memory and on guards: counted exactly, and remembered."""
