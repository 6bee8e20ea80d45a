// SPDX-License-Identifier: Apache-2.0
// Declared for ProcessGroupGloo.hpp; see algorithm.h.
#pragma once

#include <chrono>

namespace gloo {
namespace transport {
class UnboundBuffer;
}
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
