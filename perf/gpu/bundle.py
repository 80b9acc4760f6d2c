"""./dev gpu bundle: packs the programs of ./dev gpu run, with the libraries that they need, into gpu-bundle/. A machine with a GPU then
runs them without building or installing anything; it must have NVIDIA's libraries, and a glibc no older than this machine's."""
import argparse
import datetime
import json
import lzma
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from perf.gpu import programs as gpu_programs

MOST_BYTES = 56 << 20  # so that bundle and checkout together stay below 64 MiB
# Libraries that are not packed: those of the system and of NVIDIA. A libstdc++ of our own could break libraries of that machine.
LEFT_THERE = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcublas\w*|libcudnn\w*|libnccl|libnvrtc)\.so")


def needed(file, library_path):
    """The paths of the shared libraries that a file is linked with, by name."""
    done = subprocess.run(["ldd", str(file)], check=True, capture_output=True, text=True,
                          env={"LD_LIBRARY_PATH": library_path, "PATH": "/usr/bin:/bin"})
    result = {}
    for line in done.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        if not path or LEFT_THERE.match(name):
            continue
        if path.startswith("not found"):
            sys.exit(f"error: {file} needs {name}, which is not on this machine.")
        result[name] = pathlib.Path(path.split(" (")[0])
    return result


def collect(build, directory):
    """Fills bin/ and lib/ in the directory, without debug symbols."""
    for name in ("bin", "lib"):
        (directory / name).mkdir()
    libraries = {}
    for name in gpu_programs.PROGRAMS:
        program = build / "bin" / name
        if not program.exists():
            sys.exit(f"error: {program} has not been built; run './dev gpu bundle', which builds it.")
        shutil.copy2(program, directory / "bin" / name)
        libraries.update(needed(program, str(build / "src")))
    for name, path in libraries.items():
        shutil.copy2(path, directory / "lib" / name)
    for file in (*(directory / "bin").iterdir(), *(directory / "lib").iterdir()):
        subprocess.run(["strip", "--strip-unneeded", str(file)], check=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev gpu bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=gpu_programs.ROOT / "build-gpu")
    options = parser.parse_args()
    changed = subprocess.run(["git", "-C", str(gpu_programs.ROOT), "status", "--porcelain", "-uno"], capture_output=True, text=True)
    commit = gpu_programs.commit() + ("+changes" if changed.stdout.strip() else "")
    with tempfile.TemporaryDirectory(prefix="stretto-bundle-") as temporary:
        directory = pathlib.Path(temporary)
        collect(options.build, directory)
        files = {str(file.relative_to(directory)): file.stat().st_size for file in sorted(directory.rglob("*")) if file.is_file()}
        gpu_programs.BUNDLE.mkdir(exist_ok=True)
        new = gpu_programs.BUNDLE / "programs.new"
        # All programs contain the same kernels: a dictionary that spans several programs packs the kernels once.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 192 << 20}]
        with lzma.open(new, "wb", format=lzma.FORMAT_XZ, filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            for file in files:
                archive.add(directory / file, arcname=file)
    size = new.stat().st_size
    if size > MOST_BYTES:
        new.unlink()
        sys.exit(f"error: the bundle has {size / 2**20:.1f} MiB, more than the limit of {MOST_BYTES >> 20} MiB.")
    new.replace(gpu_programs.BUNDLE / "programs.tar.xz")
    libc = platform.libc_ver()
    (gpu_programs.BUNDLE / "bundle.json").write_text(json.dumps(
        {"commit": commit, "date": datetime.date.today().isoformat(), "libc": " ".join(libc), "bytes": size, "files": files}, indent=1) + "\n")
    print(f"{gpu_programs.BUNDLE}: {size / 2**20:.1f} MiB, {len(files)} files of {sum(files.values()) / 2**20:.0f} MiB, commit {commit}")


if __name__ == "__main__":
    main()
