"""The search on measurements that are there already: tables by others, and recordings of our own."""
