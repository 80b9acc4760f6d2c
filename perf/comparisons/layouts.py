"""Compares training speed of layouts of ranks: of the ways in which data-parallel ranks divide memory, and of pipeline schedules.

One host: 2 ranks of 1 thread train at ZeRO 0, 1, 2 and 3, and under FSDP2 (fully_shard) over Gloo. Between hosts, which takes root,
network namespaces of this machine stand for 4 hosts of 2 ranks each, and a token bucket limits every end of a cable to the rate:
ZeRO-3; ZeRO-3 with ZeRO++ (values gathered in int8 from the ranks of all hosts in forward, in fp32 from those of the same host in
backward, gradients summed in int4); and FSDP2. There the batch is small: 8 ranks share few cores, and the network must dominate.
Pipelines: 2 stages of 1 thread on one host, with 8 microbatches; each schedule, 1F1B also over modelled slow links, 2 data-parallel
ranks with as many sequences, and torch.distributed.pipelining's Schedule1F1B over Gloo.

Between hosts the table also has the bytes that leave a host in a step, by its interface's counter, and the time that they take at the
rate of the link, below which no step can be; of pipelines, the bubble and the time of the stages without the optimizer, beside those
that the schedule's simulation predicts. Exits 1 if a target is missed.

With --predict, 12 layouts of 2 and 4 ranks of this host instead, and 12 of 4 hosts x 2 ranks: the step that stretto-plan layout predicts
from a calibration of the machine, beside the one that is measured.
"""
import sys

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, flag
from perf.comparisons.pipeline_layouts import PIPELINES
from perf.comparisons.predicted_layouts import PREDICTED
from perf.comparisons.zero_layouts import MEMORY

PARTS = {"memory": MEMORY, "pipelines": PIPELINES, "predicted": PREDICTED}


def chosen(options):
    return ["predicted"] if options.predict else {None: ["memory", "pipelines"], "pipelines": ["pipelines"]}.get(options.only, ["memory"])


def check(parser, options):
    if options.only in ("one-host", "between-hosts") and options.write_docs and not options.earlier:
        parser.error(f"--write-docs does not take --only {options.only}; leave it out")
    if options.only == "pipelines" and options.predict:
        parser.error("--predict measures other layouts than --only pipelines; leave one of them out")
    options.rates = options.rates.split(",")
    for rate in options.rates:
        namespaces.bytes_per_second(rate)  # refuses a wrong rate before anything is measured
    if options.only in (None, "between-hosts") and not options.earlier and namespaces.obstacle():
        sys.exit(f"error: {namespaces.obstacle()} To measure one host alone, give --only one-host or --only pipelines.")


Comparison(
    "layouts", __doc__, parts=PARTS, chosen=chosen, check=check, program="train_speed", page="docs/performance.md",
    flags=(flag("--only", text="measure only one of the three; only the one between hosts takes root",
                choices=["one-host", "between-hosts", "pipelines"]),
           flag("--predict", False, "predicted steps of layouts of one host and of four, beside measured ones"),
           flag("--rates", "1gbit", "rates of links between hosts as tc writes them, as in 1gbit,300mbit"),
           flag("--seq-length", 64, "tokens of a rank between hosts"), flag("--rounds", 5),
           flag("--steps", text="timed steps of each run (default 5; of pipelines and predictions 3)", type=int),
           flag("--warmup", text="steps before them (default 6; of pipelines 2, of predictions 4)", type=int)))
