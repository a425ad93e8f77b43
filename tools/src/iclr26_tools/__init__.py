"""Evaluation shared by the paper projects.

Read in this order:

1. `statistics`: intervals, the currency of everything else.
2. `images`, `features` (with `efficientnet`), `image_metrics`, `comparison`, `probe`: from pictures to scores.
3. `timing`: what a benchmark measures.
4. `runs`, `results` (with `jsonio`, `provenance`, `plots`), `cards`: from runs to the README.
5. `cli`: the same on the command line.
"""

__version__ = "0.1.0"
