"""The ground floor: what every room stands on, using nothing of ours."""
