# SPDX-License-Identifier: Apache-2.0
"""Extracts the CUDA libraries of libtorch from the wheels in a folder, in the places where they look for each other.

usage: unpack_cuda.py WHEELS TARGET

torch/version.py is extracted too, from which the program reads the versions. Libraries of wheels that are not there, out of
the six that libtorch_cuda.so names but that no kernel of a training calls, become empty libraries of the same names, which the
compiler CXX (c++) links; the loader resolves their functions only when one is called.
"""
import os
import pathlib
import re
import subprocess
import sys
import zipfile

WANTED = re.compile(r"torch/(lib/lib(torch_cuda|c10_cuda|torch_nvshmem)\.so|version\.py)|nvidia/\w+/lib/lib[^/]*\.so[.0-9]*")
NEEDED = ("torch/lib/libtorch_cuda.so", "torch/lib/libc10_cuda.so", "torch/lib/libtorch_nvshmem.so", "torch/version.py",
          "nvidia/cu13/lib/libcublas.so.13", "nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cudnn/lib/libcudnn.so.9",
          "nvidia/nccl/lib/libnccl.so.2")
EMPTY = ("nvidia/cu13/lib/libcufft.so.12", "nvidia/cu13/lib/libcurand.so.10", "nvidia/cu13/lib/libcusparse.so.12",
         "nvidia/cusparselt/lib/libcusparseLt.so.0", "nvidia/cu13/lib/libcufile.so.0",
         "nvidia/nvshmem/lib/libnvshmem_host.so.3")


def extract(wheels, target):
    done = 0
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            for info in wheel.infolist():
                if not WANTED.fullmatch(info.filename):
                    continue
                to = target / info.filename
                to.parent.mkdir(parents=True, exist_ok=True)
                with wheel.open(info) as source, open(to, "wb") as sink:  # open() checks the entry's CRC at its end
                    while chunk := source.read(1 << 22):
                        sink.write(chunk)
                done += info.file_size
    return done


def make_empty(path):
    """Links a library without contents under the name by which others ask for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-x", "c++", os.devnull, "-o", str(path),
                    f"-Wl,-soname,{path.name}"], check=True)


def main():
    wheels, target = map(pathlib.Path, sys.argv[1:])
    done = extract(wheels, target)
    missing = [name for name in NEEDED if not (target / name).exists()]
    if missing:
        sys.exit("the wheels lack " + ", ".join(missing))
    empty = [name for name in EMPTY if not (target / name).exists()]
    for name in empty:
        make_empty(target / name)
    print(f"unpacked {done / 1e6:.0f} MB" + (f"; empty: {', '.join(name.split('/')[-1] for name in empty)}" if empty else ""))


if __name__ == "__main__":
    main()
