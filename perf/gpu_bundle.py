#!/usr/bin/env python3
"""./dev gpu bundle: packs what ./dev gpu runs, with the libraries that it needs, into gpu-bundle/. A machine with a GPU then
runs it without building or installing anything; NVIDIA's libraries have to be there, and glibc, no older than here."""
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

import gpu_programs

MOST_BYTES = 56 << 20  # with a checkout it stays below 64 MiB
# Of the system, and of NVIDIA: what programs find where they run. (libstdc++: another one than theirs would harm libraries there.)
LEFT_THERE = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcublas\w*|libcudnn\w*|libnccl|libnvrtc)\.so")


def needed(file, library_path):
    """The shared libraries that a file is linked with, by name."""
    done = subprocess.run(["ldd", str(file)], check=True, capture_output=True, text=True,
                          env={"LD_LIBRARY_PATH": library_path, "PATH": "/usr/bin:/bin"})
    result = {}
    for line in done.stdout.splitlines():
        name, _, place = line.strip().partition(" => ")
        if not place or LEFT_THERE.match(name):
            continue
        if place.startswith("not found"):
            sys.exit(f"error: {file} needs {name}, which is not on this machine.")
        result[name] = pathlib.Path(place.split(" (")[0])
    return result


def collect(build, directory):
    """bin/ and lib/ in the directory, without symbols of debuggers."""
    for name in ("bin", "lib"):
        (directory / name).mkdir()
    libraries = {}
    for name in gpu_programs.PROGRAMS:
        program = build / "bin" / name
        if not program.exists():
            sys.exit(f"error: {program} has not been built; run './dev gpu bundle', which builds it.")
        shutil.copy2(program, directory / "bin" / name)
        libraries.update(needed(program, str(build / "src")))
    for name, place in libraries.items():
        shutil.copy2(place, directory / "lib" / name)
    for file in (*(directory / "bin").iterdir(), *(directory / "lib").iterdir()):
        subprocess.run(["strip", "--strip-unneeded", str(file)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        # All programs hold the same kernels: a dictionary that spans several of them packs these once.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 192 << 20}]
        with lzma.open(new, "wb", format=lzma.FORMAT_XZ, filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            for file in files:
                archive.add(directory / file, arcname=file)
    size = new.stat().st_size
    if size > MOST_BYTES:
        new.unlink()
        sys.exit(f"error: the bundle has {size / 2**20:.1f} MiB, more than {MOST_BYTES >> 20}.")
    new.replace(gpu_programs.BUNDLE / "programs.tar.xz")
    libc = platform.libc_ver()
    (gpu_programs.BUNDLE / "bundle.json").write_text(json.dumps(
        {"commit": commit, "date": datetime.date.today().isoformat(), "libc": " ".join(libc), "bytes": size, "files": files}, indent=1) + "\n")
    print(f"{gpu_programs.BUNDLE}: {size / 2**20:.1f} MiB, {len(files)} files of {sum(files.values()) / 2**20:.0f} MiB, commit {commit}")


if __name__ == "__main__":
    main()
