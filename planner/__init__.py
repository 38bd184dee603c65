"""Which plan is best: model graph, problem, search, plan, result; importers in, launch files out."""
