"""Measures training and attention on long sequences: 2 ranks of 1 thread share every sequence.

balance: the layouts of tokens in a ring; contiguous stands beside its formula. ring, ulysses: how much of their communication is hidden on
modelled links. sp: sequence parallelism beside plain tensor parallelism on the same links. length: a sequence of 32,768 tokens on two
ranks beside one, and beside two data-parallel ranks. fits: by formula, how long a sequence may be. torch: ring attention beside the
same in PyTorch 2 over Gloo.

The sides of a part run in turn. Prints medians and verdicts; exits 1 if a verdict falls short. All parts take about 12 minutes.
"""
import sys

from perf.comparisons import long_attention, long_training
from perf.comparisons.programs import add_outputs, command_text, machine, parser_of, read_json, write_json
from perf.pages.text import DocsSection, machine_text, markdown_table, terminal_table, verdict_text

PARTS = {name: (long_attention.PARTS | long_training.PARTS)[name]
         for name in ("balance", "ring", "ulysses", "sp", "length", "fits", "torch")}
SECTIONS = {name: DocsSection(f"./dev perf long --only {name}") for name in PARTS}


def show(name, figures):
    part = PARTS[name]
    print("\n".join([f"{part.heading(figures)}:", *terminal_table(*part.rows(figures)),
                     *(verdict_text(verdict) for verdict in part.verdicts(figures)), ""]), flush=True)


def section(name, figures, about):
    part = PARTS[name]
    text = "\n".join([f"{part.heading(figures)}. Measured by `{about['command']}` on {machine_text(about['machine'])}:", "",
                      *markdown_table(*part.rows(figures))])
    return "\n\n".join([text, "\n".join(f"- {verdict_text(verdict)}" for verdict in part.verdicts(figures))])


def main():
    parser = parser_of("long", __doc__)
    cuts = [
        parser.add_argument("--only", choices=list(PARTS), metavar="PART", help=f"measure only one part: {', '.join(PARTS)}"),
        parser.add_argument("--quick", action="store_true", help="short sequences and single rounds, to see that everything runs"),
        parser.add_argument("--rounds", type=int, help="rounds, over which medians are taken, instead of each part's own number"),
    ]
    add_outputs(parser, "long", "docs/performance.md")
    options = parser.parse_args()
    if options.write_docs:
        for place in SECTIONS.values():
            place.around(options.write_docs)

    def publish(name):
        show(name, figures["parts"][name])
        if options.write_docs:
            SECTIONS[name].replace(options.write_docs, section(name, figures["parts"][name], figures))

    if options.earlier:
        figures = read_json(options.earlier)
        figures["parts"] = {name: each for name, each in figures["parts"].items() if options.only in (None, name)}
        for name in figures["parts"]:
            publish(name)
    else:
        figures = {"machine": machine(), "command": command_text(parser, options, cuts), "parts": {}}
        for name in [options.only] if options.only else PARTS:
            print(f"measuring {name}", file=sys.stderr)
            figures["parts"][name] = PARTS[name].measured(options)
            write_json(options.json, figures)  # after each part: the whole takes minutes
            publish(name)
    return 0 if all(verdict.holds for name, each in figures["parts"].items() for verdict in PARTS[name].verdicts(each)) else 1


if __name__ == "__main__":
    sys.exit(main())
