"""What schedules are chosen for."""
