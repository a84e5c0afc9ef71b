"""The twin: the engine under a virtual clock, with what was learnt of a device."""
