"""What machines exist and what they cost. Pure; boto3 only in ``sources/``."""
