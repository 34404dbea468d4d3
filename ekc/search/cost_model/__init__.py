"""What the search believes of a schedule before it is measured, how sure it is, and how it learns."""
