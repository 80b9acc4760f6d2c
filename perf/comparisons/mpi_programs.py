"""The loops over MPI's collectives, peers/mpi_*_loop.cpp, compiled and started by each MPI of this machine."""
import json
import os
import shutil

from perf.comparisons.programs import ROOT, cores, run

# Compiler and launcher by names that say which MPI they belong to, whichever of them is the system's.
MPIS = {"openmpi": ("mpicxx.openmpi", "mpirun.openmpi"), "mpich": ("mpicxx.mpich", "mpiexec.mpich")}
# The forms in which an MPI is run, with the options of its launcher.
FORMS = {
    "openmpi": [],
    "openmpi_ucx": "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any".split(),
    "openmpi_sm": "--mca coll_sm_priority 100".split(),  # slower by orders of magnitude if ranks share cores
    "mpich": [],
}


def compiled_loop(mpi, loop="mpi_host_loop"):
    """The program; None if the MPI is absent."""
    compiler, launcher = MPIS[mpi]
    if not shutil.which(compiler) or not shutil.which(launcher):
        print(f"{mpi} is absent: this machine has no {compiler} or {launcher}")
        return None
    directory = ROOT / "build/perf_host"
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / f"{loop}_{mpi}"
    run([compiler, "-std=c++20", "-O2", "-I", ROOT / "perf/tools", ROOT / f"perf/comparisons/peers/{loop}.cpp", "-o", program])
    return program


def launcher_of(form, ranks):
    mpi = form.split("_")[0]
    words = [MPIS[mpi][1], "-n", ranks]
    if mpi == "openmpi":
        words += ["--bind-to", "core"] if ranks <= cores() else ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
    elif ranks <= cores():
        words += ["-bind-to", "core"]
    return words + FORMS[form]


def rows_of(command, start=lambda command: run(command).stdout):
    """What a loop prints: the version of its MPI, and a row for each size."""
    return [json.loads(line) for line in start(command).splitlines()]
