"""From a job file to a stored job, and from another computer's job to ours."""
