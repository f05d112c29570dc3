"""What the controller decides: pure functions of observed objects and the time. No store, no clock, no transport."""
