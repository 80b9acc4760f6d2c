"""Measures training and attention on long sequences: 2 ranks of 1 thread share every sequence.

balance: the layouts of tokens in a ring; contiguous stands beside its formula. ring, ulysses: how much of their communication is hidden on
modelled links. sp: sequence parallelism beside plain tensor parallelism on the same links. length: a sequence of 32,768 tokens on two
ranks beside one, and beside two data-parallel ranks. fits: by formula, how long a sequence may be. torch: ring attention beside the
same in PyTorch 2 over Gloo.

The sides of a part run in turn. Exits 1 if a target is missed. All parts take about 12 minutes.
"""
from perf.comparisons import long_attention, long_training
from perf.comparisons.harness import Comparison, flag

PARTS = {name: (long_attention.PARTS | long_training.PARTS)[name]
         for name in ("balance", "ring", "ulysses", "sp", "length", "fits", "torch")}

Comparison("long", __doc__, parts=PARTS, chosen=lambda options: [options.only] if options.only else PARTS, page="docs/performance.md",
           flags=(flag("--only", text=f"measure only one part: {', '.join(PARTS)}", choices=list(PARTS), metavar="PART"),
                  flag("--quick", False, "short sequences and single rounds, to see that everything runs"),
                  flag("--rounds", text="rounds, over which medians are taken, instead of each part's own number", type=int)))
