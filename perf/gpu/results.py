"""The results of ./dev gpu run as files: perf/results/NAME.json for each kind of GPU, and copies with the logs in --out."""
import json
import re
import shutil
import sys
import tarfile

from perf.gpu import programs as gpu_programs

DIRECTORY = gpu_programs.ROOT / "perf/results"


def name_of(gpu):
    """NVIDIA H100 80GB HBM3 becomes h100_80gb_hbm3."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"^nvidia\s+", "", gpu.lower())).strip("_")


def file_of(gpu):
    return DIRECTORY / f"{name_of(gpu)}.json"


def read(file):
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"error: {file} cannot be read ({error}).")


def stored():
    """The results of all GPUs."""
    return [results for file in sorted(DIRECTORY.glob("*.json")) if "steps" in (results := read(file))]


def newest(results):
    return max((step["date"] for step in results["steps"].values()), default="")


def merged(files):
    """The newest results of each step, and the machine of the newest step."""
    of_files = [(file, read(file)) for file in files]
    first, found = of_files[0]
    for file, results in of_files:
        if "steps" not in results:
            sys.exit(f"error: {file} was not written by ./dev gpu run; name files that it has written.")
        if results["gpu"] != found["gpu"]:
            sys.exit(f"error: {first} is of {found['gpu']}, {file} of {results['gpu']}; judge each GPU's files by themselves.")
    machine = max((results for _, results in of_files), key=newest)["machine"]
    steps = {}
    for _, results in of_files:
        for name, step in results["steps"].items():
            if name not in steps or step["date"] >= steps[name]["date"]:
                steps[name] = step
    return {"gpu": found["gpu"], "machine": machine, "steps": steps}


def write(results, file):
    """Writes the whole file or nothing: the time on the machine may end at any moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(file)


def hand_out(file, logs, directory):
    """Copies the results, and all logs as one archive, into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, directory)
    new = directory / "logs.new"
    with tarfile.open(new, "w:gz") as archive:
        archive.add(logs, arcname="logs")
    new.replace(directory / "logs.tar.gz")
