"""The index of a data set: counts and seek points of every shard, in one parquet object beside the data.

Two floors: `table`, `place` and `find` stand below `streamio.settle`, which uses an index; `build`, which makes one
with `share`, `scan` and `parts`, stands above it.
"""
