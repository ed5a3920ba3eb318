"""Sessions: machines that a team can use, over every crash."""
