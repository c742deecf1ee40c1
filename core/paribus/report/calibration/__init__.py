"""What a study can tell before it is asked: its noise, and the seeds that an effect takes."""
