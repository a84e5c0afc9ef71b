"""What can be tuned: at present the bundled engine, on a real device or a simulated one."""
