"""What carries out a step: the torch executor on a real device, the simulated one under a virtual clock."""
