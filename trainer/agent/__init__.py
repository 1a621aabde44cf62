"""What runs beside the job on the machine and keeps its promises."""
