"""The Python side of perf: comparisons with other libraries, measurements on GPUs, and the pages that show their figures."""
