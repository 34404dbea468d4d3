"""The course: lessons, exercises, and the check of their answers."""
