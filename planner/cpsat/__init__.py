"""The CP-SAT model of one mesh: scaling to integers, variables, constraints and objective."""
