"""An explorer of schedule spaces in the browser: the legal next steps of a schedule with their figures."""
