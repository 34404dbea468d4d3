"""What a launch does, counted from its tree: operations, traffic, how much of it is resident."""
