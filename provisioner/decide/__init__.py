"""What to do next for a job: pure steps over what was seen."""
