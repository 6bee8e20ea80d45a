// SPDX-License-Identifier: Apache-2.0
// Starts kernels in the emulation as nvcc compiled them, translated by ptx_to_cpp.py, or as the C++
// compiler did. Included by emulation.h with TESSERA_EMULATION_PTX.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include <cxxabi.h>

namespace tessera::emulation {

/// A kernel whose arguments are at an address, each aligned for its type.
using PtxKernel = void (*)(std::uint64_t arguments);
/// The kernel with a demangled name. Throws std::runtime_error if there is none, or if its
/// arguments do not have this size.
PtxKernel ptx_kernel(const std::string& name, std::size_t bytes);

inline bool& ptx_is_used() {
  static bool used = false;
  return used;
}
/// True: kernels that are started from now on are those of nvcc.
inline void use_ptx(bool used) {
  ptx_is_used() = used;
}

template <class T>
std::string demangled() {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status), &std::free);
  return text == nullptr ? typeid(T).name() : text.get();
}

/// Kernels are functions, or element_kernel for a function object, its last argument.
template <class... Arguments>
std::string name_of(const std::string& written) {
  std::string types;
  for (const std::string& one : {demangled<Arguments>()...})
    types += (types.empty() ? "" : ", ") + one;
  const std::size_t end = written.find("element_kernel");
  if (end == std::string::npos) return written + "(" + types + ")";
  const std::string names[] = {demangled<Arguments>()...};
  return "element_kernel<" + names[sizeof...(Arguments) - 1] + ">";
}

template <class T>
void append(std::vector<unsigned char>& to, const T& value) {
  to.resize((to.size() + alignof(T) - 1) / alignof(T) * alignof(T));
  to.resize(to.size() + sizeof(T));
  std::memcpy(to.data() + to.size() - sizeof(T), static_cast<const void*>(&value), sizeof(T));
}

template <class... Parameters, class... Arguments>
void launch(dim3 grid,
            dim3 block,
            const char* written,
            void (*kernel)(Parameters...),
            Arguments... arguments) {
  if (!ptx_is_used()) return run(grid, block, [=] { kernel(arguments...); });
  std::vector<unsigned char> memory;
  (append<Parameters>(memory, static_cast<Parameters>(arguments)), ...);
  const PtxKernel translated = ptx_kernel(name_of<Parameters...>(written), memory.size());
  memory.resize((memory.size() + 15) / 16 * 16);
  run(grid, block, [&] { translated(reinterpret_cast<std::uint64_t>(memory.data())); });
}

}  // namespace tessera::emulation
