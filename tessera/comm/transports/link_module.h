// SPDX-License-Identifier: Apache-2.0
// Interface of a link whose engine is an optional library (MPI): it is a shared library of its own
// next to libtessera.so, which is opened only if it is asked for, so that the program starts
// without that library. Plain C functions: nothing of the C++ runtime crosses them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::comm {

inline constexpr std::uint32_t kLinkModuleVersion = 2;

/// A caller's buffer for a message about a failure, which is cut to its size.
struct LinkModuleText {
  char* text;
  std::size_t bytes;
};

/// Functions that can fail return false, or nullptr, and say why. Threads: one for each peer and
/// direction at a time; close() from any.
struct LinkModule {
  std::uint32_t version;
  const char* name;  ///< "mpi"
  /// Connects this process. The engine must have started it, and number it in the same way.
  void* (*open)(int rank, int world_size, LinkModuleText why);
  /// Returns when the memory may be overwritten.
  bool (*send)(void* link, int peer, const void* data, std::size_t bytes, LinkModuleText why);
  /// Receives one message, of at most this size.
  bool (*receive)(void* link, int peer, void* data, std::size_t bytes, LinkModuleText why);
  void (*close)(void* link);  ///< ends all waiting calls, and all later ones
  void (*destroy)(void* link);
};

/// Name of the function without arguments that returns the LinkModule.
inline constexpr const char* kLinkModuleSymbol = "tessera_link_module";
using LinkModuleFunction = const LinkModule* (*)();

}  // namespace tessera::comm
