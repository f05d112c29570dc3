"""What was done to a picture on its way to a tensor, told from the numbers: admission, diagnosis, the self-test."""
