// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/foreign_error.h"

#include <string_view>

namespace tessera {

Error foreign_error(const std::string& what, Where where) {
  const auto says = [&](std::string_view words) { return what.find(words) != std::string::npos; };
  if (says("DefaultCPUAllocator") || says("std::bad_alloc") || says("Cannot allocate memory"))
    return {Error::Kind::Memory,
            "out of memory",
            "use a smaller model, batch or sequence, or raise the limit on memory (ulimit -v)",
            where};
  if (says("Resource temporarily unavailable"))
    return {Error::Kind::Memory,
            "no thread could be started: memory or the number of processes is limited",
            "raise the limits (ulimit -v, ulimit -u), or use fewer threads "
            "(run.threads_per_rank)",
            where};
  return {Error::Kind::Bug, what, "", where};
}

}  // namespace tessera
