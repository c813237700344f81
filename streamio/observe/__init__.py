"""What there is to tell about a run: drops and counters."""
