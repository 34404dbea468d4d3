"""What a Program must keep before it can become a kernel, each rule with its refusal."""
