"""The programs that comparisons run, the machine they run on, and the files of figures."""
import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build/bin"
# Variables that would make a program believe that another launcher started it, or would change the measurement.
FOREIGN = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_\w+|(OMPI|PMIX?|MPIR|SLURM|STRETTO(?!_CALIBRATE|_CACHE_DIR|_CPU_LEVEL)|TORCHELASTIC)_\w+)$")


def cores():
    return len(os.sched_getaffinity(0))


def cpu_field(name):
    """A line of /proc/cpuinfo, such as "model name"; empty if it is missing."""
    with open("/proc/cpuinfo") as file:
        return next((value.strip() for field, _, value in (line.partition(":") for line in file) if field.strip() == name), "")


def processor():
    """The processor's name, as stretto::processor_name() gives it."""
    family, model = cpu_field("cpu family"), cpu_field("model")
    return (cpu_field("model name") or "unknown processor") + (f" (family {family}, model {model})" if family and model else "")


def machine():
    release = pathlib.Path("/etc/os-release")
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', release.read_text(), re.M) if release.exists() else None
    return {
        "cpu": processor() + (f" (STRETTO_CPU_LEVEL={level})" if (level := os.environ.get("STRETTO_CPU_LEVEL")) else ""),
        "cores": cores(),
        "system": f"{system.group(1) if system else os.uname().sysname}, Linux {os.uname().release}",
        "date": datetime.date.today().isoformat(),
    }


def run(command, seconds=600, **variables):
    """A program's output on stdout and stderr, as subprocess.run returns it. Exits with an error if the program fails: a
    comparison with a hole is none."""
    environment = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)} | variables
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        settings = "".join(f"{name}='{value}' " for name, value in variables.items())
        sys.exit(f"error: '{settings}{' '.join(words)}' ended with status {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done


def figures_of(command, start=run):
    """Runs a program with --json and returns the figures that it wrote. start must run the command to its end."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        start([*command, "--json", file.name])
        return json.loads(pathlib.Path(file.name).read_text())


def model_text(sequences, tokens=256, of="rank"):
    """The model that train_speed and its peers train if no flag says otherwise."""
    return f"6 layers, 384 wide, 6 heads, {tokens} tokens, vocabulary 65, {sequences} sequence{'s' * (sequences > 1)} a {of}"


def last_json(output):
    """The object in the last line of a program's output."""
    return json.loads(output.strip().splitlines()[-1])


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as reason:
        sys.exit(f"error: {path} cannot be read as JSON: {reason}.")


def write_json(path, figures):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")


# ---- command lines

def parser_of(verb, description):
    return argparse.ArgumentParser(prog=f"./dev perf {verb}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_outputs(parser, name, page=None):
    """Adds the source and the targets of figures: --from, --json and, for a page of docs/, --write-docs."""
    parser.add_argument("--json", default=str(ROOT / f"runs/{name}.json"), help=f"file for the figures (default runs/{name}.json)")
    parser.add_argument("--from", dest="earlier", metavar="JSON", help="measure nothing; use the figures of an earlier run")
    if page:
        parser.add_argument("--write-docs", nargs="?", const=str(ROOT / page), type=pathlib.Path, metavar="FILE",
                            help=f"put the figures between the marks of {page}, or of FILE")


def command_text(parser, options, actions):
    """The command with those of the actions' flags that differ from their defaults."""
    words = [parser.prog]
    for action in actions:
        value, name = getattr(options, action.dest), action.option_strings[:1]
        if value != action.default:
            words += [*name, *([] if action.nargs == 0 else value if isinstance(value, list) else [value])]
    return " ".join(map(str, words))


def sorted_numbers(text, pattern, what):
    """The numbers of a list such as 8,64K,4M."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    found = [re.fullmatch(pattern, word) for word in text.split(",")]
    if not all(found):
        sys.exit(f"error: '{text}' is no list of {what}.")
    return sorted({int(word.group(1)) * units[word.group(2) if word.lastindex == 2 else ""] for word in found})


def sizes_in_bytes(text):
    return sorted_numbers(text, r"(\d{1,9})([KM]?)", "sizes: give bytes with suffix K or M")


def rank_counts(text):
    return sorted_numbers(text, r"(\d{1,2})", "numbers of ranks, such as 2,4,8")


def host_layouts(text):
    """(hosts, ranks of a host) of each word of a list."""
    if not re.fullmatch(r"[1-9]\d?x[1-9]\d?(,[1-9]\d?x[1-9]\d?)*", text):
        sys.exit(f"error: '{text}' is no list of HOSTSxRANKS, such as 2x1,4x2.")
    return [tuple(map(int, word.split("x"))) for word in text.split(",")]
