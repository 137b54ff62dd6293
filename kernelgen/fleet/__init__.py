"""Many operators on many devices: one scheduler, and executors that run commands for it."""
