# SPDX-License-Identifier: Apache-2.0
"""Translates kernels of PTX, which nvcc made, into C++ functions for the emulation (emulation.h): a statement for each instruction.

usage: ptx_to_cpp.py [--without PATTERN] FILE.ptx... > kernels.cpp

Kernels whose demangled name matches PATTERN are left out. An instruction that is not known here ends the translation with a
sentence. The arithmetic of single operations is that of C++ with IEEE numbers: compile without contraction. Source: NVIDIA, "PTX
ISA" 9.0.
"""
import re
import subprocess
import sys

BANKS = {"p": "bool", "rs": "u16", "r": "u32", "rd": "u64", "f": "f32", "fd": "f64", "SP": "u64", "SPL": "u64"}
SPECIAL = {"tid": "thread", "ntid": "block_size", "ctaid": "block", "nctaid": "grid_size"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^"}

PRELUDE = """#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "ops/cuda/emulation.h"

namespace {
using u8 = std::uint8_t; using u16 = std::uint16_t; using u32 = std::uint32_t; using u64 = std::uint64_t;
using s8 = std::int8_t; using s16 = std::int16_t; using s32 = std::int32_t; using s64 = std::int64_t;
using f32 = float; using f64 = double;
const auto& here() { return tessera::emulation::position(); }

// Registers have no type: a number and a fraction of the same size are the same bits.
template <class To, class From>
To as(From x) {
  if constexpr (std::is_floating_point_v<To> != std::is_floating_point_v<From> && sizeof(To) == sizeof(From))
    return __builtin_bit_cast(To, x);
  else
    return static_cast<To>(x);
}
template <class T> T read(u64 at) {
  if (at % sizeof(T) != 0) throw std::runtime_error("an access that is not aligned");
  T out; std::memcpy(&out, reinterpret_cast<const void*>(at), sizeof(T)); return out;
}
template <class T> void write(u64 at, T value) {
  if (at % sizeof(T) != 0) throw std::runtime_error("an access that is not aligned");
  std::memcpy(reinterpret_cast<void*>(at), &value, sizeof(T));
}
template <class T> T shift_left(T x, u32 by) { return by >= sizeof(T) * 8 ? T{0} : static_cast<T>(x << by); }
template <class T> T shift_right(T x, u32 by) {
  if (by >= sizeof(T) * 8) return x < 0 ? static_cast<T>(-1) : T{0};
  return static_cast<T>(x >> by);
}
template <class T> T smaller(T a, T b) { if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b); else return b < a ? b : a; }
template <class T> T larger(T a, T b) { if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b); else return a < b ? b : a; }
u32 permuted(u32 a, u32 b, u32 how) {
  const u64 both = (u64{b} << 32U) | a;
  u32 out = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 choice = how >> (4 * i);
    u32 byte = static_cast<u32>(both >> ((choice & 7U) * 8U)) & 0xffU;
    if ((choice & 8U) != 0U) byte = (byte & 0x80U) != 0U ? 0xffU : 0U;
    out |= byte << (8 * i);
  }
  return out;
}
/// The lane from which `shfl` reads; `c` has the lanes of a group.
int source_lane(bool down, u32 by, u32 c) {
  const auto lane = static_cast<u32>(here().lane);
  const u32 mask = (c >> 8U) & 31U, last = (lane & mask) | (c & 31U & ~mask);
  const u32 other = down ? lane + by : lane ^ by;
  return static_cast<int>(other <= last ? other : lane);
}
u32 shuffled(bool down, u32 value, u32 by, u32 c) {
  return static_cast<u32>(tessera::emulation::exchange(value, source_lane(down, by, c), "shfl.sync"));
}
"""

EPILOGUE = """struct Known { void (*kernel)(u64); std::size_t bytes; };
const std::map<std::string, Known>& known() {
  static const std::map<std::string, Known> all = {
%s
  };
  return all;
}
}  // namespace

tessera::emulation::PtxKernel tessera::emulation::ptx_kernel(const std::string& name, std::size_t bytes) {
  const auto found = known().find(name);
  if (found == known().end()) throw std::runtime_error("no PTX of the kernel " + name);
  if (found->second.bytes != bytes)
    throw std::runtime_error("nvcc gives the arguments of " + name + " another size than this compiler");
  return found->second.kernel;
}
"""


def fail(sentence):
    sys.exit("ptx_to_cpp: " + sentence)


def operands(text):
    """Splits at commas outside of braces and brackets."""
    out, depth = [""], 0
    for c in text:
        depth += (c in "{[") - (c in "}]")
        if c == "," and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return [x.strip() for x in out if x.strip()]


def type_of(name):
    """The C++ name of a type of PTX; bits are unsigned."""
    return "bool" if name == "pred" else name.replace("b", "u")


def unsigned(name):
    return "u" + name[1:]


class Kernel:
    def __init__(self, symbol, parameters, body):
        self.symbol, self.body, self.offsets, self.bytes = symbol, body, {}, 0
        for one in operands(parameters):
            found = re.fullmatch(r"\.param (?:\.align (\d+) )?\.\w(\d+) (\S+?)(?:\[(\d+)\])?", one)
            if not found:
                fail(f"unknown parameter: {one}")
            size = int(found[2]) // 8
            align = int(found[1] or size)
            self.bytes = (self.bytes + align - 1) // align * align
            self.offsets[found[3]] = self.bytes
            self.bytes += size * int(found[4] or 1)

    def register(self, text):
        found = re.fullmatch(r"%([a-zA-Z]+?)(\d*)", text)
        if not found or found[1] not in BANKS:
            fail(f"unknown register {text} in {self.symbol}")
        return (f"{found[1]}[{found[2]}]" if found[2] else found[1]), BANKS[found[1]]

    def value(self, text, type_name):
        """An operand as an expression of a type."""
        c = type_of(type_name)
        special = re.fullmatch(r"%(n?tid|n?ctaid)\.(\w)", text)
        if special:
            return f"as<{c}>(here().{SPECIAL[special[1]]}.{special[2]})"
        if text.startswith("%"):
            name, bank = self.register(text)
            return name if bank == c else f"as<{c}>({name})"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return f"as<{c}>(__builtin_bit_cast(float, 0x{text[2:]}U))"
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
            return f"as<{c}>(__builtin_bit_cast(double, 0x{text[2:]}ULL))"
        if text in self.offsets:
            return f"as<{c}>(P + {self.offsets[text]})"
        if text.startswith("__local_depot"):
            return f"as<{c}>(reinterpret_cast<u64>(local))"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", text):
            return f"static_cast<{c}>({text.rstrip('U')}LL)"
        return fail(f"unknown operand {text} in {self.symbol}")

    def put(self, to, type_name, expression):
        """Stores an expression of a type in a register."""
        if to == "_":
            return f"static_cast<void>({expression});"
        name, bank = self.register(to)
        c = type_of(type_name)
        return f"{name} = as<{bank}>(static_cast<{c}>({expression}));"

    def address(self, text):
        found = re.fullmatch(r"\[(.+?)(?:\+(-?\d+))?\]", text)
        return f"{self.value(found[1], 'u64')} + {found[2] or 0}"

    def memory(self, parts, a):
        vector = next((int(x[1:]) for x in parts if re.fullmatch(r"v\d", x)), 1)
        if parts[1] not in ("param", "global", "local"):
            fail(f"unknown memory .{parts[1]} in {self.symbol}")
        c = type_of(parts[-1])
        size = int(re.sub(r"\D", "", parts[-1])) // 8
        place, registers = (a[1], a[0]) if parts[0] == "ld" else (a[0], a[1])
        registers = operands(registers[1:-1]) if registers.startswith("{") else [registers]
        if len(registers) != vector:
            fail(f"{vector} registers are expected: {a}")
        at = self.address(place)
        if parts[0] == "ld":
            return " ".join(self.put(r, parts[-1], f"read<{c}>({at} + {i * size})") for i, r in enumerate(registers))
        return " ".join(f"write<{c}>({at} + {i * size}, {self.value(r, parts[-1])});" for i, r in enumerate(registers))

    def compare(self, parts, a):
        kind, t = parts[1], parts[-1]
        x, y = self.value(a[1], t), self.value(a[2], t)
        either = f"(std::isnan({x}) || std::isnan({y}))"
        if kind in COMPARISONS:
            ordered = f"!{either} && " if kind == "ne" and t.startswith("f") else ""  # the only one that C++ finds true for NaN
            return f"{self.register(a[0])[0]} = {ordered}{x} {COMPARISONS[kind]} {y};"
        if kind in UNORDERED:
            return f"{self.register(a[0])[0]} = {either} || {x} {UNORDERED[kind]} {y};"
        if kind in ("nan", "num"):
            return f"{self.register(a[0])[0]} = {'' if kind == 'nan' else '!'}{either};"
        return fail(f"unknown comparison {'.'.join(parts)}")

    def convert(self, parts, a):
        to, of = parts[-2], parts[-1]
        value = self.value(a[1], of)
        if to[0] == "f" and of[0] == "f":
            if "rzi" in parts:
                value = f"std::trunc({value})"
            elif any(x in parts for x in ("rni", "rmi", "rpi")):
                fail(f"unknown rounding in {'.'.join(parts)}")
        elif of[0] == "f":
            fail(f"unknown conversion {'.'.join(parts)}")
        if "sat" in parts:
            value = f"std::fmin(std::fmax({value}, {type_of(of)}{{0}}), {type_of(of)}{{1}})"
        return self.put(a[0], to, value)

    def statement(self, operation, a):
        parts = operation.split(".")
        name, t = parts[0], parts[-1]
        whole = t[0] != "f"
        v = lambda i, of=t: self.value(a[i], of)
        if "approx" in parts:
            fail(f"{operation} is an approximation, whose bits only a GPU knows ({self.symbol})")
        if name in ("ld", "st"):
            return self.memory(parts, a)
        if name == "mov" and "{" in a[0] + a[1]:
            packed = unsigned(t)
            halves = operands((a[0] if "{" in a[0] else a[1])[1:-1])
            bits = int(t[1:]) // len(halves)
            if "{" in a[0]:
                return " ".join(self.put(r, f"u{bits}", f"{self.value(a[1], packed)} >> {i * bits}") for i, r in enumerate(halves))
            return self.put(a[0], packed, " | ".join(f"({packed}{{{self.value(r, f'u{bits}')}}} << {i * bits})" for i, r in enumerate(halves)))
        if name in ("mov", "cvta"):
            return self.put(a[0], t, v(1))
        if name == "cvt":
            return self.convert(parts, a)
        if name == "setp":
            return self.compare(parts, a)
        if name == "selp":
            return self.put(a[0], t, f"{self.value(a[3], 'pred')} ? {v(1)} : {v(2)}")
        if name == "mul" and "wide" in parts:
            wide = t[0] + str(2 * int(t[1:]))
            return self.put(a[0], wide, f"static_cast<{wide}>({v(1)}) * static_cast<{wide}>({v(2)})")
        if name == "mul" and "hi" in parts:
            wide = "unsigned __int128" if t == "u64" else {"u32": "u64", "s32": "s64", "s64": "__int128"}[t]
            return self.put(a[0], t, f"(static_cast<{wide}>({v(1)}) * static_cast<{wide}>({v(2)})) >> {t[1:]}")
        if name in ("mad",) and "lo" in parts:
            u = unsigned(t)
            return self.put(a[0], u, f"{v(1, u)} * {v(2, u)} + {v(3, u)}")
        if name in INFIX:
            of = unsigned(t) if whole and name in ("add", "sub", "mul") else t
            return self.put(a[0], of, f"{v(1, of)} {INFIX[name]} {v(2, of)}")
        if name == "fma" and "rn" in parts:
            return self.put(a[0], t, f"std::fma({v(1)}, {v(2)}, {v(3)})")
        if name == "sqrt" and "rn" in parts:
            return self.put(a[0], t, f"std::sqrt({v(1)})")
        if name == "rcp" and "rn" in parts:
            return self.put(a[0], t, f"{type_of(t)}{{1}} / {v(1)}")
        if name == "neg":
            return self.put(a[0], t, f"-{v(1)}") if not whole else self.put(a[0], unsigned(t), f"0 - {v(1, unsigned(t))}")
        if name == "abs" and not whole:
            return self.put(a[0], t, f"std::fabs({v(1)})")
        if name == "copysign":
            return self.put(a[0], t, f"std::copysign({v(2)}, {v(1)})")
        if name == "not":
            return self.put(a[0], t, f"{'!' if t == 'pred' else '~'}{v(1)}")
        if name in ("min", "max"):
            return self.put(a[0], t, f"{'smaller' if name == 'min' else 'larger'}<{type_of(t)}>({v(1)}, {v(2)})")
        if name in ("shl", "shr"):
            return self.put(a[0], t, f"shift_{'left' if name == 'shl' else 'right'}<{type_of(t)}>({v(1)}, {v(2, 'u32')})")
        if name == "prmt":
            return self.put(a[0], "b32", f"permuted({v(1, 'b32')}, {v(2, 'b32')}, {v(3, 'b32')})")
        if name == "shfl" and parts[2] in ("down", "bfly"):
            down = "true" if parts[2] == "down" else "false"
            return self.put(a[0].split("|")[0], "b32", f"shuffled({down}, {v(1, 'b32')}, {v(2, 'u32')}, {v(3, 'u32')})")
        if operation == "atom.global.min.u64":
            return self.put(a[0], t, f"atomicMin(reinterpret_cast<u64*>({self.address(a[1])}), {v(2)})")
        if name == "bar":
            return 'tessera::emulation::wait_for_block("bar.sync");'
        if name == "bra":
            return f"goto {a[0].replace('$', '')};"
        if name == "ret":
            return "return;"
        return fail(f"unknown instruction {operation} {', '.join(a)} in {self.symbol}")

    def function(self, number, title):
        out = [f"// {title}", f"void kernel_{number}([[maybe_unused]] u64 P) {{"]
        for bank, count in re.findall(r"\.reg \.\w+\s+%(\w+?)<(\d+)>;", self.body):
            out.append(f"  [[maybe_unused]] {BANKS[bank]} {bank}[{count}] = {{}};")
        if "%SPL" in self.body:
            out.append("  [[maybe_unused]] u64 SP = 0, SPL = 0;")
        depot = re.search(r"\.local \.align \d+ \.b8\s+__local_depot\d+\[(\d+)\];", self.body)
        if depot:
            out.append(f"  alignas(16) [[maybe_unused]] unsigned char local[{depot[1]}] = {{}};")
        if ".shared" in self.body:
            fail(f"{self.symbol} has shared memory, which is not known here")
        for line in map(str.strip, self.body.split("\n")):
            if not line or line.startswith("."):
                continue
            label = re.fullmatch(r"\$(\w+):", line)
            if label:
                out.append(f"{label[1]}:;")
                continue
            found = re.fullmatch(r"(?:@(!?)%p(\d+)\s+)?([\w.:]+)\s*(.*?);", line)
            if not found:
                fail(f"unknown line: {line}")
            text = self.statement(found[3], operands(found[4]))
            out.append(f"  if ({found[1]}p[{found[2]}]) {{ {text} }}" if found[2] else f"  {text}")
        return out + ["}"]


def key_of(title):
    """The name by which launch.h asks for a kernel: name(types) without namespaces, or element_kernel<its function object>."""
    begin = title.find("element_kernel<")
    if begin < 0:
        name, types = title.split("(", 1) if "(anonymous namespace)" not in title else title.split("(anonymous namespace)::", 1)[1].split("(", 1)
        return name.split("::")[-1] + "(" + types
    depth, end = 0, begin + len("element_kernel")
    while True:
        depth += (title[end] == "<") - (title[end] == ">")
        end += 1
        if depth == 0:
            return title[begin:end]


def main():
    files = sys.argv[1:]
    without = None
    if files[:1] == ["--without"]:
        without, files = re.compile(files[1]), files[2:]
    kernels = []
    for path in files:
        with open(path, encoding="ascii") as file:
            text = re.sub(r"//.*", "", file.read())
        kernels += [Kernel(*found) for found in
                    re.findall(r"\.entry (\S+?)\((.*?)\)\s*(?:\.maxntid[^\n]*\n)?\s*\{(.*?)\n\}", text, re.S)]
    if not kernels:
        fail("no kernels in " + ", ".join(files))
    titles = subprocess.run(["c++filt"], input="\n".join(k.symbol for k in kernels), capture_output=True, text=True,
                            check=True).stdout.split("\n")
    print(PRELUDE)
    table = []
    for number, (kernel, title) in enumerate(zip(kernels, titles)):
        if without and without.search(title):
            continue
        print("\n".join(kernel.function(number, title)))
        table.append(f'    {{R"_({key_of(title)})_", {{&kernel_{number}, {kernel.bytes}}}}},')
    print(EPILOGUE % "\n".join(table))


if __name__ == "__main__":
    main()
