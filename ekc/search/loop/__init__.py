"""The search loop: generations, breeding, measuring, selection, finals, stopping."""
