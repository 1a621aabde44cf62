"""What an AWS account must be like, and what is made there: facts, checks, policies. Pure."""
