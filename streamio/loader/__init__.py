"""The loader: batches of a data set, made by workers, in the order of the plan."""
