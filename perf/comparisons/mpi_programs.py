"""The loops over MPI's collectives, peers/mpi_*_loop.cpp, compiled and started by each MPI of this machine: Debian's, and newer ones that
`./dev deps mpi` has brought into .cache/mpi."""
import json
import os
import shutil

from perf.comparisons.programs import ROOT, cores, run

# Debian's: compiler and launcher by names that say which MPI they belong to, whichever of them is the system's.
MPIS = {"openmpi": ("mpicxx.openmpi", "mpirun.openmpi"), "mpich": ("mpicxx.mpich", "mpiexec.mpich")}
# Newer ones, which take the place of Debian's where they are: the directory, whose headers it is compiled with (Intel MPI comes without,
# and has the binary interface of MPICH), and whose place it takes.
NEWER = {"ompi5": ("openmpi", "openmpi", "openmpi"), "mpich5": ("mpich", "mpich", "mpich"), "impi": ("impi_rt", "mpich", None)}
# The forms in which an MPI is run, with the options of its launcher. What makes ranks sleep or yield is for more ranks than cores.
FORMS = {
    "openmpi": [],
    "openmpi_ucx": "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any".split(),
    "openmpi_sm": "--mca coll_sm_priority 100".split(),  # slower by orders of magnitude if ranks share cores
    "mpich": [],
    "ompi5": [],
    "ompi5_ucx": "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any".split(),
    "ompi5_sm": "--mca coll_sm_priority 100".split(),
    "mpich5": [],
    "impi": "-genv I_MPI_FABRICS shm".split(),
}
YIELDING = {"impi": "-genv I_MPI_THREAD_YIELD 2 -genv I_MPI_PIN off".split()}


def place_of(mpi):
    return ROOT / ".cache/mpi" / NEWER[mpi][0]


def is_here(mpi):
    if mpi in NEWER:
        return place_of(mpi).is_dir() and (ROOT / ".cache/mpi" / NEWER[mpi][1]).is_dir()
    return all(map(shutil.which, MPIS[mpi]))


def newest():
    """The MPIs to compare with: of each kind the newest that this machine has."""
    newer = [mpi for mpi in NEWER if is_here(mpi)]
    if len(newer) < len(NEWER):
        print("./dev deps mpi brings newer MPIs than Debian's to compare with")
    replaced = {NEWER[mpi][2] for mpi in newer}
    return [mpi for mpi in MPIS if mpi not in replaced] + newer


def compiler_of(mpi):
    if mpi in MPIS:
        return [MPIS[mpi][0]], []
    libraries = place_of(mpi) / "lib"
    # Its libraries find those that they need themselves.
    return (["g++", "-I", ROOT / ".cache/mpi" / NEWER[mpi][1] / "include"],
            ["-L", libraries, "-lmpi", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"])


def compiled_loop(mpi, loop="mpi_host_loop"):
    """The program; None if the MPI is absent."""
    if not is_here(mpi):
        print(f"{mpi} is absent: this machine has no {' or '.join(MPIS[mpi])}")
        return None
    directory = ROOT / "build/perf_host"
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / f"{loop}_{mpi}"
    compiler, libraries = compiler_of(mpi)
    run([*compiler, "-std=c++20", "-O2", "-I", ROOT / "perf/tools", ROOT / f"perf/comparisons/peers/{loop}.cpp", "-o", program, *libraries])
    return program


def launcher_of(form, ranks):
    mpi, shares_cores = form.split("_")[0], ranks > cores()
    is_openmpi = mpi in ("openmpi", "ompi5")
    launcher = MPIS[mpi][1] if mpi in MPIS else place_of(mpi) / "bin" / ("mpirun" if is_openmpi else "mpiexec")
    words = [launcher, "-n", ranks]
    if is_openmpi:
        words += ["--oversubscribe", "--bind-to", "none"] if shares_cores else ["--bind-to", "core"]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
    elif mpi == "impi":
        words += ["-genv", "I_MPI_ROOT", place_of(mpi)]
    elif not shares_cores:
        words += ["-bind-to", "core"]
    return words + FORMS[form] + (YIELDING.get(mpi, []) if shares_cores else [])


def rows_of(command, start=lambda command: run(command).stdout):
    """What a loop prints: the version of its MPI, and a row for each size."""
    return [json.loads(line) for line in start(command).splitlines()]
