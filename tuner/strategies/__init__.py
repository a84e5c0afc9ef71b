"""How the next settings to measure are found: strategies behind one contract (`base`), by name (`registry`)."""
