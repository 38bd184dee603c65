"""What work costs: stateless functions of shapes, strategy and hardware, over numpy arrays."""
