"""Running over several devices and machines. The next stretches fill this package; the engine runs on one CPU now."""
