"""The programs that ./dev gpu runs: those of a bundle where there is one, else those of build/; and the libraries of CUDA that
they find on this machine."""
import contextlib
import json
import math
import os
import pathlib
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "gpu-bundle"
TESTS = ("gpu_tests", "gpu_collectives_tests", "gpu_processes_tests", "gpu_parity_tests")
PROGRAMS = (*TESTS, "gpu_kernels", "gpu_overlap", "train_speed", "stretto-info", "stretto-train", "stretto-perf")
# NVIDIA's, which no bundle holds: hundreds of MiB, and where there is a GPU, they are there.
SYSTEM = pathlib.Path("/usr/lib/x86_64-linux-gnu")  # where programs look by themselves
CUDA_LIBRARIES = ("libcublasLt.so.13", "libnccl.so.2", "libcudnn.so.9", "libnvrtc.so.13", "libcudart.so.13")


def has_gpu():
    """As the driver shows it, without asking CUDA."""
    if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        return True
    lists = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return "GPU 0" in (lists or "")


def cuda_directories():
    """Where CUDA_LIBRARIES are, those of Python's packages first: PyTorch uses them, so that both compute with the same."""
    packages = [pathlib.Path(path) for path in (*sys.path, *site.getsitepackages()) if path.endswith("-packages")]
    places = [place for package in packages for place in sorted(package.glob("nvidia/*/lib"))]
    places += [pathlib.Path("/usr/local/cuda/lib64"), SYSTEM]
    found = {}
    for name in CUDA_LIBRARIES:
        place = next((place for place in places if (place / name).exists()), None)
        if place is not None and place != SYSTEM:
            found.setdefault(str(place))
    return list(found)


class Programs:
    def __init__(self, directory, libraries=None, version=None):
        self.directory = pathlib.Path(directory)
        self.version = version or {"commit": "unknown"}
        self.library_path = [*([str(libraries)] if libraries else []), *cuda_directories()]

    def path(self, name):
        return str(self.directory / name)

    def description(self):
        made = f", made on {self.version['date']}" if "date" in self.version else ""
        return f"{'the bundle' if made else self.directory} of commit {self.version['commit']}{made}"

    def environment(self):
        """For them alone: other programs have libraries of their own."""
        result = dict(os.environ, GPT2_REFERENCE=str(ROOT / "tests/reference/gpt2_reference.safetensors"))
        before = [result["LD_LIBRARY_PATH"]] if result.get("LD_LIBRARY_PATH") else []
        result["LD_LIBRARY_PATH"] = ":".join(self.library_path + before)
        return result


def commit():
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:  # a machine that only measures may have no git
        return "unknown"
    return done.stdout.strip() or "unknown"


@contextlib.contextmanager
def programs():
    if (BUNDLE / "programs.tar.xz").exists():
        with tempfile.TemporaryDirectory(prefix="stretto-gpu-") as directory:
            with tarfile.open(BUNDLE / "programs.tar.xz") as archive:
                archive.extractall(directory)
            version = json.loads((BUNDLE / "bundle.json").read_text())
            yield Programs(pathlib.Path(directory) / "bin", pathlib.Path(directory) / "lib", version)
        return
    missing = [name for name in PROGRAMS if not (ROOT / "build/bin" / name).exists()]
    if missing:
        sys.exit(f"error: there is no bundle in {BUNDLE}, and build/bin has no {', '.join(missing)}; make the bundle with "
                 "'./dev gpu bundle' on a machine with Debian's packages and nvcc.")
    yield Programs(ROOT / "build/bin", version={"commit": commit()})


def compute_sanitizer():
    """Its path, or None."""
    at_cuda = pathlib.Path("/usr/local/cuda/bin/compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(at_cuda) if at_cuda.exists() else None)


class Ended:
    """How a command ended: status (None: it was stopped), hung (it was stopped for its silence), and what it printed."""

    def __init__(self, status, hung, text):
        self.status, self.hung, self.text = status, hung, text

    def how(self):
        return f"ended with status {self.status}" if self.status is not None else "fell silent" if self.hung else "ran out of time"

    def sentence(self, name):
        words = self.text.strip().splitlines()
        return f"{name} {self.how()}" + (f", its last words: {words[-1].strip()}" if words else " without a word")


def wait(process, log, limit, silence):
    """Its status, or None where it has to be stopped; and whether it fell silent."""
    start = heard = time.monotonic()
    size = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=0.2), False
        now = time.monotonic()
        if os.path.getsize(log) > size:
            size, heard = os.path.getsize(log), now
        if now - heard >= silence:
            return None, True
        if now - start >= limit:
            return None, False


def threads_of(group):
    """A line for each thread of a group of processes: where in the kernel it stands, and in which system call."""
    lines = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[2]) != group:
                continue
            for task in sorted(stat.parent.glob("task/*")):
                lines.append(f"# {task.parent.parent.name}/{task.name}")
                for name in ("comm", "wchan", "syscall"):
                    with contextlib.suppress(OSError):  # some are for root alone
                        lines[-1] += f" {name} {(task / name).read_text().strip()}"
    return "".join(line + "\n" for line in lines)


def run(command, environment, log, limit, silence=math.inf):
    """Runs a command, which gets limit seconds for itself and all that it starts, and may be silent for that many; the log gets
    its words, what it prints, and where its threads stood if it fell silent."""
    words = [str(word) for word in command]
    start = time.monotonic()
    threads = ""
    with open(log, "ab") as file:
        file.write(f"$ {' '.join(words)}\n".encode())
        file.flush()
        begin = file.tell()
        # A group of its own, so that nothing is left of it; no session, so that it ends with the session of who runs this.
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                   process_group=0)
        try:
            status, hung = wait(process, log, max(limit, 1), silence)
            threads = threads_of(process.pid) if hung else ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it has left behind
            with contextlib.suppress(subprocess.TimeoutExpired):  # what stands in the GPU's driver may not end at all
                process.wait(timeout=10)
    with open(log, "rb") as file:
        file.seek(begin)
        ended = Ended(status, hung, file.read().decode(errors="replace"))
    with open(log, "ab") as file:
        file.write(f"{threads}# {ended.how()} after {time.monotonic() - start:.1f} s\n\n".encode())
    return ended
