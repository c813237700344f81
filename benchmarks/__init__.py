"""Benchmarks: streamio, its floors and its peers side by side, each case in a fresh process. See README.md."""
