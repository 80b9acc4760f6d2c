"""The programs of ./dev gpu run, from a bundle if there is one, else from build/; and the libraries of CUDA on this machine."""
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

from perf.comparisons.programs import ROOT

BUNDLE = ROOT / "gpu-bundle"
TESTS = ("gpu_tests", "gpu_collectives_tests", "gpu_processes_tests", "gpu_parity_tests")
PROGRAMS = (*TESTS, "gpu_kernels", "gpu_overlap", "train_speed", "stretto-info", "stretto-train", "stretto-perf")
# NVIDIA's libraries are in no bundle: they have hundreds of MiB, and a machine with a GPU has them.
SYSTEM = pathlib.Path("/usr/lib/x86_64-linux-gnu")  # searched by programs anyway
CUDA_LIBRARIES = ("libcublasLt.so.13", "libnccl.so.2", "libcudnn.so.9", "libnvrtc.so.13", "libcudart.so.13")


def has_gpu():
    """Whether the driver shows a GPU; CUDA is not asked."""
    if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        return True
    lists = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return "GPU 0" in (lists or "")


def cuda_directories():
    """The directories of CUDA_LIBRARIES. Those of Python's packages come first, so that Stretto and PyTorch use the same libraries."""
    packages = [pathlib.Path(path) for path in (*sys.path, *site.getsitepackages()) if path.endswith("-packages")]
    directories = [directory for package in packages for directory in sorted(package.glob("nvidia/*/lib"))]
    directories += [pathlib.Path("/usr/local/cuda/lib64"), SYSTEM]
    found = {}
    for name in CUDA_LIBRARIES:
        directory = next((directory for directory in directories if (directory / name).exists()), None)
        if directory is not None and directory != SYSTEM:
            found.setdefault(str(directory))
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
        """Variables for these programs only; other programs have libraries of their own."""
        references = ROOT / "tests/reference"
        result = dict(os.environ, GPT2_REFERENCE=str(references / "gpt2_reference.safetensors"), DECODER_REFERENCES=str(references / "decoders"),
                      SMOLLM2_REFERENCE=str(references / "smollm2_reference.safetensors"))
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
    """How a command ended: its status (None if it was stopped), hung (whether it was stopped for printing nothing), and its output."""

    def __init__(self, status, hung, text):
        self.status, self.hung, self.text = status, hung, text

    def how(self):
        return f"ended with status {self.status}" if self.status is not None else "fell silent" if self.hung else "ran out of time"

    def sentence(self, name):
        words = self.text.strip().splitlines()
        return f"{name} {self.how()}" + (f", its last words: {words[-1].strip()}" if words else " without a word")


def wait(process, log, limit, silence):
    """(status, or None if the process must be stopped; whether it fell silent)."""
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
    """A line for each thread of a group of processes: its place in the kernel, and its system call."""
    lines = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[2]) != group:
                continue
            for task in sorted(stat.parent.glob("task/*")):
                lines.append(f"# {task.parent.parent.name}/{task.name}")
                for name in ("comm", "wchan", "syscall"):
                    with contextlib.suppress(OSError):  # some of them only root may read
                        lines[-1] += f" {name} {(task / name).read_text().strip()}"
    return "".join(line + "\n" for line in lines)


def run(command, environment, log, limit, silence=math.inf):
    """Runs a command from the repository's root. The command and all that it starts may run for limit seconds, and print nothing for
    silence seconds. The log gets the command, its output, and the state of its threads if it fell silent."""
    words = [str(word) for word in command]
    start = time.monotonic()
    threads = ""
    with open(log, "ab") as file:
        file.write(f"$ {' '.join(words)}\n".encode())
        file.flush()
        begin = file.tell()
        # A group of its own, so that all of it can be ended; the same session, so that it ends with the caller's.
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                   process_group=0, cwd=ROOT)
        try:
            status, hung = wait(process, log, max(limit, 1), silence)
            threads = threads_of(process.pid) if hung else ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also the processes that it has left behind
            with contextlib.suppress(subprocess.TimeoutExpired):  # a thread inside the GPU's driver may never end
                process.wait(timeout=10)
    with open(log, "rb") as file:
        file.seek(begin)
        ended = Ended(status, hung, file.read().decode(errors="replace"))
    with open(log, "ab") as file:
        file.write(f"{threads}# {ended.how()} after {time.monotonic() - start:.1f} s\n\n".encode())
    return ended
