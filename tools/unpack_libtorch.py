# SPDX-License-Identifier: Apache-2.0
"""Extracts from the wheels in a folder only what tessera links and includes.

usage: unpack_libtorch.py WHEELS TARGET

Only some headers are extracted: the wheel's include folder also contains fmt, which would hide Debian's version.
libtorch_cpu.so finds libcudart and libcupti through its own RPATH in the sibling folder nvidia/cu13/lib.
oneDNN is extracted into onednn/: libtorch contains a copy of its own, but does not export it.
"""
import pathlib
import re
import sys
import zipfile

LIBRARIES = {
    "torch/lib/libc10.so",
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libgomp.so.1",
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cu13/lib/libcupti.so.13",
    "onednn/lib/libdnnl.so.3",
}
HEADERS = tuple("torch/include/" + name for name in ("ATen/", "c10/", "torch/", "caffe2/", "sleef.h"))
HEADERS += ("onednn/include/",)
LICENCES = {"onednn/share/doc/onednn/LICENSE", "onednn/share/doc/onednn/THIRD-PARTY-PROGRAMS"}
ONEDNN = re.compile(r"^onednn(_devel)?_cpu_gomp-[0-9.]+\.data/data/")


def place(name):
    """Returns the path of a wheel's file below TARGET, or None if it is not needed."""
    name = ONEDNN.sub("onednn/", name)
    return name if name in LIBRARIES | LICENCES or (name.startswith(HEADERS) and not name.endswith("/")) else None


def main():
    wheels, target = map(pathlib.Path, sys.argv[1:])
    entries = []
    for path in sorted(wheels.glob("*.whl")):
        wheel = zipfile.ZipFile(path)
        entries += [(wheel, info, to) for info in wheel.infolist() if (to := place(info.filename))]
    missing = LIBRARIES - {to for _, _, to in entries}
    if missing:
        sys.exit("the wheels lack " + ", ".join(sorted(missing)))
    total = sum(info.file_size for _, info, _ in entries)
    done, shown = 0, -1
    for wheel, info, to in entries:
        path = target / to
        path.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open(info) as source, open(path, "wb") as sink:  # open() checks the entry's CRC at its end
            while chunk := source.read(1 << 22):
                sink.write(chunk)
                done += len(chunk)
                if sys.stdout.isatty() and (percent := 100 * done // total) != shown:
                    print(f"\runpacking {percent:3d} %", end="", flush=True)
                    shown = percent
    if sys.stdout.isatty():
        print()
    print(f"unpacked {len(entries)} files, {total / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
