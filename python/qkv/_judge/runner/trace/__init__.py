"""Where a person's code leaves the textbook: every value that its lines make is compared with the textbook's arrays."""
