"""Search for the scheduler settings with the most goodput, and the command line."""
